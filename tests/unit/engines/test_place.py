"""Where a version runs, and what is said where that is a GPU which is not there."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from blink_persistent.backend import PersistentBackend
from blink_persistent.engines.place import (
    CPU,
    GpuPlace,
    SchedulerKind,
    gpu_place,
    place_problems,
)
from blink_persistent.engines.scripted import ScriptedEngine
from blink_persistent.gpu import presence
from blink_persistent.testing.scripted_version import write_scripted_version
from blink_server.backend import ModelVersion
from blink_server.config import load_model_config

MODULES = ("json",)


def version(engine: Mapping[str, Any], directory: Path = Path("m/1")) -> ModelVersion:
    return ModelVersion("m", 1, directory, {"engine": {"name": "scripted", **engine}})


def test_a_place_is_a_gpu_or_the_cpu() -> None:
    assert gpu_place({}, MODULES) == GpuPlace(0, SchedulerKind.DEVICE, MODULES)
    assert gpu_place({}, MODULES, default=CPU) is None
    asked = {"device": "cuda:12", "scheduler": "host"}
    assert gpu_place(asked, MODULES, default=CPU) == GpuPlace(12, SchedulerKind.HOST, MODULES)


@pytest.mark.parametrize(
    ("engine", "default", "field"),
    [
        ({"device": "cuda"}, CPU, "engine.device"),
        ({"device": "cuda:01"}, CPU, "engine.device"),
        ({"device": 0}, CPU, "engine.device"),
        ({"device": "cpu"}, "cuda:0", "engine.device"),
        ({"scheduler": "gpu"}, "cuda:0", "engine.scheduler"),
        ({"scheduler": "host"}, CPU, "engine.scheduler"),
    ],
)
def test_wrong_places_are_named(engine: dict[str, Any], default: str, field: str) -> None:
    (problem,) = place_problems(version(engine), default=default)
    assert problem.field == field


def test_right_ones_are_not() -> None:
    for engine in ({}, {"device": "cuda:1"}, {"device": "cuda:1", "scheduler": "device"}):
        assert place_problems(version(engine)) == []
        assert ScriptedEngine().check(version(engine)) == []
    assert place_problems(version({"device": "cpu"}), default=CPU) == []


@pytest.fixture
def backend() -> PersistentBackend:
    return PersistentBackend({"scripted": ScriptedEngine}, {"default": dict}, {})


def loaded(directory: Path) -> ModelVersion:
    return ModelVersion("scripted", 1, directory, load_model_config(directory))


def test_a_gpu_that_is_not_there_is_named(
    backend: PersistentBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = loaded(write_scripted_version(tmp_path, device="cuda:1"))
    monkeypatch.setattr(presence, "_is_installed", lambda name: True)
    for gpus, said in (
        ((0, 0), "needs GPU 1 with driver 580 or later, none found"),
        ((1, 13000), "needs GPU 1 with driver 580 or later, only 1 found"),
        ((2, 12080), "needs an NVIDIA driver 580 or later (CUDA 13.0): this one offers CUDA 12.8"),
    ):
        monkeypatch.setattr(presence, "gpus", lambda gpus=gpus: gpus)
        (problem,) = backend.check(found)
        assert (problem.field, problem.value, problem.expected) == ("engine.name", "scripted", said)
    monkeypatch.setattr(presence, "gpus", lambda: (2, 13000))
    assert backend.check(found) == []


def test_the_extra_that_is_not_installed_is_named() -> None:
    said = presence.missing_for_gpu(0, ("json", "no_such.module", "nor_this"))
    assert said == "needs no_such.module, nor_this: pip install 'blink-server[cuda]'"
    said = presence.missing_for_gpu(0, ("nor_this",), "tensorrt")
    assert said == "needs nor_this: pip install 'blink-server[tensorrt]'"


class FakeDriver:
    """libcuda with two GPUs of compute capability 8.9; `fails` is the call that does."""

    def __init__(self, fails: str = "") -> None:
        self._fails = fails

    def cuDeviceGet(self, handle: Any, ordinal: int) -> int:  # noqa: N802  the driver's name
        return int(self._fails == "cuDeviceGet")

    def cuDeviceGetAttribute(self, value: Any, attribute: int, handle: Any) -> int:  # noqa: N802
        value._obj.value = {75: 8, 76: 9}[attribute]
        return int(self._fails == "cuDeviceGetAttribute")


def test_a_gpus_architecture_is_told_by_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "gpus", lambda: (2, 13000))
    monkeypatch.setattr("ctypes.CDLL", lambda name: FakeDriver())
    assert [presence.architecture(device) for device in (0, 1, 2)] == ["sm_89", "sm_89", ""]
    for call in ("cuDeviceGet", "cuDeviceGetAttribute"):
        monkeypatch.setattr("ctypes.CDLL", lambda name, call=call: FakeDriver(call))
        assert presence.architecture(0) == ""


def test_looking_for_a_gpu_imports_nothing_and_fails_for_nobody() -> None:
    before = set(sys.modules)
    count, cuda = presence.gpus()
    assert count >= 0
    assert (count == 0) or cuda >= 1000
    assert not {name for name in set(sys.modules) - before if name.split(".")[0] == "torch"}


def test_a_version_on_a_gpu_is_reached_by_a_link(
    backend: PersistentBackend, tmp_path: Path
) -> None:
    on_gpu = loaded(write_scripted_version(tmp_path / "gpu", device="cuda:3"))
    on_cpu = loaded(write_scripted_version(tmp_path / "cpu"))
    link = backend.runner_command(on_gpu, threads=2)
    assert link[2:] == ["blink_persistent.gpu_runner.link", "--device", "3", "--threads", "2"]
    assert backend.runner_command(on_cpu, threads=2)[-3:] == [
        "blink_persistent.runner",
        *("--threads", "2"),
    ]
    assert backend.estimate(on_gpu) != backend.estimate(on_cpu)
