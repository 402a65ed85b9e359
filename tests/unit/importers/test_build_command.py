"""`blink-server build`: a plan for TensorRT from what an import for the engine `cuda` wrote."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from blink_persistent.engines.tensorrt import plan_builder
from blink_persistent.engines.tensorrt.build_progress import build_progress
from blink_persistent.engines.tensorrt.engine import TensorRtEngine
from blink_persistent.engines.tensorrt.flavour import FLAVOURS
from blink_persistent.gpu.presence import gpus
from blink_server.backend import ModelVersion
from blink_server.check import check_command
from blink_server.config import load_graph_grid, load_model_config
from blink_server.errors import BlinkError
from blink_server.importers.build_command import build_command
from blink_server.importers.command import import_command
from blink_server.testing.tiny_huggingface import write_tiny_huggingface

SMALL = ("--max-rows", "2", "--context-length", "32", "--set", "block_size=16")
RTX = ("--engine", "tensorrt", "--set", "flavour=rtx")

needs_rtx = pytest.mark.skipif(
    FLAVOURS["rtx"].module_name() is None, reason="TensorRT for RTX is not installed"
)
no_gpu = pytest.mark.skipif(gpus()[0] > 0, reason="this machine has a GPU")


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a version for the engine `cuda`."""
    base = tmp_path_factory.mktemp("build")
    source = write_tiny_huggingface(base / "hf", "qwen3", dtype="BF16").directory
    arguments = ["--hf", str(source), "--name", "tiny", "--model-repository", str(base / "models")]
    result = CliRunner().invoke(import_command, [*arguments, "--engine", "cuda"])
    assert result.exception is None, result.output
    return base / "models"


@pytest.fixture
def repository(imported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(imported, tmp_path / "models"))


def build(repository: Path, *arguments: str, model: str = "tiny") -> Result:
    return CliRunner().invoke(
        build_command, [model, "--model-repository", str(repository), *arguments]
    )


def failure(result: Result) -> str:
    assert isinstance(result.exception, BlinkError), result.output
    return str(result.exception)


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@needs_rtx
@pytest.mark.parametrize("target", ["sm_80", "sm_120"])
def test_a_version_with_a_plan_is_built_beside_the_other(repository: Path, target: str) -> None:
    origin = repository / "tiny" / "1"
    config = json.loads((origin / "config.json").read_text())
    config |= {"tool_parser": "hermes", "limits": config["limits"] | {"max_queue": 7}}
    (origin / "config.json").write_text(json.dumps(config))
    (origin / "notes.txt").write_text("mine")
    before = files(origin)
    options = ("--set", "block_count=64", "--set", "device=cuda:1")
    result = build(repository, *RTX, *SMALL, *options, "--target", target)
    assert result.exception is None, result.output
    assert files(origin) == before
    built = repository / "tiny" / "2"
    assert set(files(built)) == {
        *("config.json", "graph_grid.json", "model.plan", "notes.txt"),
        *("tokenizer.json", "chat_template.jinja"),
    }
    for kept in ("tokenizer.json", "chat_template.jinja", "notes.txt"):
        assert files(built)[kept] == before[kept]
    found = load_model_config(built)
    assert (found["tool_parser"], found["source"]) == ("hermes", config["source"])
    assert (
        found["limits"] | {"max_queue": 7, "max_rows": 2, "context_length": 32} == found["limits"]
    )
    assert (found["engine"]["block_count"], found["engine"]["device"]) == (64, "cuda:1")
    plan = found["engine"]["plan"]
    assert (plan["target"], plan["flavour"], plan["attention"]) == (target, "rtx", "native")
    assert plan["version"] == FLAVOURS["rtx"].load().__version__
    assert plan["file_bytes"] == (built / "model.plan").stat().st_size
    assert load_graph_grid(built)["decode"] == [{"rows": 1}, {"rows": 2}]
    assert TensorRtEngine().check(ModelVersion("tiny", 2, built, found)) == []


@needs_rtx
def test_a_plan_that_was_cut_short_is_named_by_check(repository: Path) -> None:
    built = build(repository, *RTX, *SMALL, "--target", "sm_86")
    assert built.exception is None, built.output
    plan = repository / "tiny" / "2" / "model.plan"
    whole = plan.read_bytes()
    plan.write_bytes(whole[:-1])
    told = CliRunner().invoke(check_command, [str(repository)]).stdout
    expected = f"must have the {len(whole)} bytes that were built"
    assert f"{plan}: bytes: is {len(whole) - 1}; {expected}" in told


@needs_rtx
def test_a_build_that_is_stopped_leaves_nothing(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopping(trt: Any, report: Callable[[float], None]) -> Any:
        def stop(fraction: float) -> None:
            raise KeyboardInterrupt

        return build_progress(trt, stop)

    monkeypatch.setattr(plan_builder, "build_progress", stopping)
    result = build(repository, *RTX, *SMALL, "--target", "sm_89")
    assert result.exit_code != 0
    assert [path.name for path in repository.iterdir()] == ["tiny"]
    assert [path.name for path in (repository / "tiny").iterdir()] == ["1"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--engine", "tensort"], "no plugin offers the engine 'tensort'; did you mean 'tensorrt'"),
        ([*RTX, "--set", "flavor=rtx"], "engine.flavor: is 'rtx'; use one of flavour, target"),
        ([*RTX, "--set", "block_size=48"], "engine.block_size: is 48; must be one of 16, 32"),
        (
            [*RTX, "--set", "capture=later"],
            "engine.capture: is 'later'; must be one of all",
        ),
        ([*RTX, "--set", "block_count=1"], "engine.block_count: is 1; must be at least 2"),
        ([*RTX, "--set", "plugin=rust"], "engine.plugin: is 'rust'"),
        ([*RTX, "--set", "device=gpu"], "engine.device: is 'gpu'; must be the number of a GPU"),
        ([*RTX, "--set", "attention=plugin", "--target", "sm_89"], "takes no plugins"),
        ([*RTX, "--target", "sm_89", "--context-length", "65"], "the model was made for 64"),
        pytest.param([*RTX, "--target", "sm_90"], "must be one of sm_80, sm_86", marks=needs_rtx),
        pytest.param([*RTX, "--target", "sm_75"], "is 'sm_75'; must be one of", marks=needs_rtx),
        pytest.param(
            [*RTX], "engine.target: give one to blink-server build, as sm_89", marks=no_gpu
        ),
        pytest.param(
            ["--engine", "tensorrt", "--set", "flavour=full", "--target", "sm_90"],
            "TensorRT builds on the GPU that is to serve, and this machine has none",
            marks=no_gpu,
        ),
        (["--engine", "scripted"], "it builds no models"),
        (["--engine", "tensorrt", "--version", "1"], "exists already"),
    ],
)
def test_what_cannot_be_built_is_refused_by_name(
    repository: Path, arguments: list[str], message: str
) -> None:
    told = failure(build(repository, *arguments))
    assert message in told
    assert ".import-" not in told
    assert [path.name for path in repository.iterdir()] == ["tiny"]
    assert [path.name for path in (repository / "tiny").iterdir()] == ["1"]


def test_a_problem_is_told_of_the_version_that_was_to_be(repository: Path) -> None:
    told = failure(build(repository, *RTX, "--set", "block_size=48"))
    assert told.startswith(f"{repository}/tiny/2/config.json: engine.block_size")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("block_size", "'block_size' is not NAME=VALUE"),
        ("name=cuda", "use --engine"),
        ("target=sm_80", "use --target"),
    ],
)
def test_a_setting_that_is_none_is_refused(repository: Path, setting: str, message: str) -> None:
    result = build(repository, *RTX, "--target", "sm_89", "--set", setting)
    assert result.exit_code == 2
    assert message in result.output


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("tiny:2", "tiny/2 is not there"),
        ("tiny:one", "must be a positive whole number"),
        ("large", "has no version to build of"),
        ("_tiny", "the model name '_tiny' must be letters"),
    ],
)
def test_a_version_that_is_not_there_is_named(repository: Path, model: str, message: str) -> None:
    assert message in failure(build(repository, *RTX, "--target", "sm_89", model=model))


def test_an_engine_that_keeps_no_weights_is_named(repository: Path) -> None:
    config = repository / "tiny" / "1" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"engine": {"name": "scripted"}}))
    refused = failure(build(repository, *RTX, "--target", "sm_89"))
    assert "engine.name: is 'scripted'; keeps no weights" in refused


def test_versions_that_give_no_weights_away_are_passed_over(repository: Path) -> None:
    for number, changed in (("2", {"backend": "echo"}), ("3", {"engine": {"name": "scripted"}})):
        newer = Path(shutil.copytree(repository / "tiny" / "1", repository / "tiny" / number))
        config = json.loads((newer / "config.json").read_text())
        (newer / "config.json").write_text(json.dumps(config | changed))
    result = build(repository, "--engine", "cuda")
    assert result.exception is None, result.output
    assert "built of tiny:1" in result.output
