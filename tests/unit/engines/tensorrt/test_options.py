"""What is wrong with a version that has a plan is said by name, without TensorRT and a GPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blink_persistent.engines.place import SchedulerKind
from blink_persistent.engines.tensorrt import engine as tensorrt_engine
from blink_persistent.engines.tensorrt import plugin_attention
from blink_persistent.engines.tensorrt.engine import TensorRtEngine
from blink_persistent.engines.tensorrt.options import read_options
from blink_persistent.engines.tensorrt.plan_description import (
    LAYOUT,
    PlanDescription,
    StepRange,
    capability_of,
    grid_hash,
)
from blink_persistent.graph_grid import default_grid
from blink_server.backend import ModelVersion
from blink_server.errors import Problem
from blink_server.testing.memory_checkpoint import tiny_architecture

GRID = default_grid(4, 64, max_sequences=2, smallest_prefill=16)
PLAN = PlanDescription(
    flavour="rtx",
    version="1.7.1.116",
    target="sm_89",
    attention="native",
    aliased=True,
    dtype="bfloat16",
    layout=LAYOUT,
    block_size=16,
    max_blocks=4,
    blocks=1000,
    decode=StepRange(sequences=4, tokens=4),
    prefill=StepRange(sequences=2, tokens=64),
    grid=grid_hash(GRID),
    file_bytes=100,
    architecture=tiny_architecture(rope_divisors=(1.0, 2.0)),
)

Change = Callable[[Path, dict[str, Any]], None]


def check(directory: Path, change: Change = lambda directory, config: None) -> list[Problem]:
    """The problems of a version that was right before it was changed."""
    (directory / "model.plan").write_bytes(bytes(PLAN.file_bytes))
    (directory / "graph_grid.json").write_text(json.dumps(GRID.to_json()))
    engine = json.loads(json.dumps({"name": "tensorrt", "plan": PLAN.to_json()}))
    limits = {"context_length": 60, "max_rows": 4, "max_prefill_tokens": 64}
    config = {"engine": engine, "limits": limits, "eos_token_ids": [2]}
    change(directory, config)
    return list(TensorRtEngine().check(ModelVersion("m", 1, directory, config)))


def engine(**options: Any) -> Change:
    return lambda directory, config: config["engine"].update(options)


def plan(**fields: Any) -> Change:
    return lambda directory, config: config["engine"]["plan"].update(fields)


def keys(**changed: Any) -> Change:
    def change(directory: Path, config: dict[str, Any]) -> None:
        grid = GRID.to_json() | changed
        (directory / "graph_grid.json").write_text(json.dumps(grid))

    return change


def cut_short(directory: Path, config: dict[str, Any]) -> None:
    (directory / "model.plan").write_bytes(bytes(60))


def gone(directory: Path, config: dict[str, Any]) -> None:
    (directory / "model.plan").unlink()


def longer(directory: Path, config: dict[str, Any]) -> None:
    config["limits"]["context_length"] = 65


def test_what_was_built_is_right(tmp_path: Path) -> None:
    assert check(tmp_path) == []
    assert PlanDescription.from_json(json.loads(json.dumps(PLAN.to_json()))) == PLAN
    assert capability_of("sm_120") == (12, 0)


@pytest.mark.parametrize(
    ("change", "file", "field", "expected"),
    [
        (cut_short, "model.plan", "bytes", "must have the 100 bytes that were built"),
        (gone, "model.plan", "", "is missing: build the version again"),
        (longer, "config.json", "limits.context_length", "must be from 49 to 64"),
        (plan(layout=LAYOUT + 1), "config.json", "engine.plan.layout", f"must be {LAYOUT}"),
        (engine(block_count=1001), "config.json", "engine.block_count", "must be at most 1000"),
        (engine(block_count=1), "config.json", "engine.block_count", "must be at least 2"),
        (engine(speed=1), "config.json", "engine.speed", ""),
        (engine(device="gpu"), "config.json", "engine.device", "must be the number of a GPU"),
        (engine(capture="later"), "config.json", "engine.capture", "background"),
        (plan(flavour="lean"), "config.json", "engine.plan.flavour", "full"),
        (plan(target="hopper"), "config.json", "engine.plan.target", ""),
        (plan(dtype="float16"), "config.json", "engine.plan.dtype", "bfloat16"),
        (
            keys(decode=[{"rows": 1}, {"rows": 8}]),
            *("graph_grid.json", "decode", "hold up to 4 sequences and 4 tokens"),
        ),
        (
            keys(prefill=[{"sequences": 2, "tokens": 128}]),
            *("graph_grid.json", "prefill", "hold up to 2 sequences and 64 tokens"),
        ),
        (
            keys(mixed=[{"sequences": 2, "tokens": 64, "rows": 4}]),
            *("graph_grid.json", "mixed", "plans have no mixed steps"),
        ),
        (
            keys(prefill=[{"sequences": 2, "tokens": 2}, {"sequences": 2, "tokens": 64}]),
            *("graph_grid.json", "prefill", "must have more tokens than sequences"),
        ),
    ],
)
def test_what_does_not_fit_the_plan_is_named(
    tmp_path: Path, change: Change, file: str, field: str, expected: str
) -> None:
    (problem,) = check(tmp_path, change)
    assert (problem.file, problem.field) == (tmp_path / file, field)
    assert expected in problem.expected
    assert not problem.of_machine


def test_a_description_that_lacks_fields_is_refused(tmp_path: Path) -> None:
    def strip(directory: Path, config: dict[str, Any]) -> None:
        del config["engine"]["plan"]["target"]
        del config["engine"]["plan"]["architecture"]["layers"]

    fields = {problem.field for problem in check(tmp_path, strip)}
    assert fields == {"engine.plan.target", "engine.plan.architecture.layers"}


def test_a_coarser_grid_within_the_plans_is_right(tmp_path: Path) -> None:
    coarse = {"decode": [{"rows": 4}], "prefill": [{"sequences": 2, "tokens": 64}]}
    assert check(tmp_path, keys(**coarse)) == []


def test_a_plugin_library_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin_attention, "LIBRARY_FILE", tmp_path / "libblink_tensorrt.so")

    def library(directory: Path, config: dict[str, Any]) -> None:
        config["engine"]["plugin"] = "library"
        config["engine"]["plan"]["attention"] = "plugin"

    (problem,) = check(tmp_path, library)
    assert problem.field == "engine.plugin"
    assert "needs the plugin library libblink_tensorrt.so" in problem.expected
    assert problem.of_machine
    (tmp_path / "libblink_tensorrt.so").touch()
    assert check(tmp_path, library) == []


@pytest.mark.parametrize(("gpu", "problems"), [("sm_89", 0), ("", 0), ("sm_90", 1)])
def test_a_gpu_that_the_plan_is_not_for_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu: str, problems: int
) -> None:
    monkeypatch.setattr(tensorrt_engine, "architecture", lambda device: gpu)
    found = check(tmp_path)
    assert len(found) == problems
    for problem in found:
        assert (problem.field, problem.value) == ("engine.plan.target", "sm_89")
        assert problem.expected == "this GPU is sm_90: build the version with --target sm_90"
        assert problem.of_machine


def test_where_it_runs_names_the_flavours_module_and_extra(tmp_path: Path) -> None:
    assert check(tmp_path) == []
    named = {"name": "tensorrt", "plan": PLAN.to_json(), "device": "cuda:1", "scheduler": "host"}
    config = {"engine": named, "limits": {"context_length": 60}, "eos_token_ids": []}
    found = ModelVersion("m", 1, tmp_path, config)
    place = TensorRtEngine().place(found)
    assert place is not None
    assert (place.device, place.scheduler) == (1, SchedulerKind.HOST)
    assert place.extra == "tensorrt-rtx"
    assert place.modules[0] == "cuda.bindings"
    assert place.modules[1].startswith("tensorrt_rtx")
    assert read_options(found).plan == PLAN
