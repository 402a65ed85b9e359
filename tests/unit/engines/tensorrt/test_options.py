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
    capability_of,
)
from blink_persistent.testing.fake_plan import GRID, PLAN, fake_version
from blink_server.errors import Problem

Change = Callable[[Path, dict[str, Any]], None]


def check(directory: Path, change: Change = lambda directory, config: None) -> list[Problem]:
    """The problems of a version that was right before it was changed."""
    found = fake_version(directory)
    change(directory, dict(found.config))
    return list(TensorRtEngine().check(found))


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
        (cut_short, "model.plan", "bytes", "must have the 3000 bytes that were built"),
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


def test_mixed_keys_that_are_not_used_are_right(tmp_path: Path) -> None:
    def alternating(directory: Path, config: dict[str, Any]) -> None:
        keys(mixed=[{"sequences": 2, "tokens": 64, "rows": 4}])(directory, config)
        config["limits"]["prefill"] = "alternating"

    assert check(tmp_path, alternating) == []


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
    plan = PLAN.to_json() | {"flavour": "rtx"}
    found = fake_version(tmp_path, plan=plan, device="cuda:1", scheduler="host")
    place = TensorRtEngine().place(found)
    assert place is not None
    assert (place.device, place.scheduler) == (1, SchedulerKind.HOST)
    assert place.extra == "tensorrt-rtx"
    assert place.modules[0] == "cuda.bindings"
    assert place.modules[1].startswith("tensorrt_rtx")
    assert read_options(found).plan.flavour == "rtx"
