"""What a version whose graphs a thread of the host launches holds, and that it gives it back."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from blink_persistent.engines.scripted import ScriptedOptions, ScriptedProvisioned
from blink_persistent.gpu_runner import host_service
from blink_persistent.gpu_runner.host_service import HostService
from blink_persistent.gpu_runner.service import Task
from blink_persistent.graph_grid import default_grid
from blink_server.backend import ModelVersion
from blink_server.control import RunnerEnvironment

LIMITS = {
    **{"context_length": 256, "slots": 512, "max_queue": 16},
    **{"step_timeout_seconds": 30, "grammar_mib": 1},
}
CONFIG = {"deterministic": False, "eos_token_ids": [2], "limits": LIMITS}


class Trouble(Exception):
    """Of a part of a service."""


def fail(*_: object, **__: object) -> Any:
    raise Trouble


class FakeScheduler:
    """Writes down what it is told."""

    def __init__(self, told: list[str]) -> None:
        self._told = told

    def __getattr__(self, name: str) -> Any:
        return lambda: self._told.append(name)


class Rig:
    """Makes a service without a GPU; `told` is what its scheduler and engine were told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.told: list[str] = []
        self._folder = folder
        self._version = ModelVersion("m", 1, folder, CONFIG)
        self.engine = ScriptedProvisioned(self._version, default_grid(4, 64), ScriptedOptions())
        monkeypatch.setattr(
            host_service, "HostDrivenScheduler", lambda *_, **__: FakeScheduler(self.told)
        )

    def make(self) -> HostService:
        done: Future[None] = Future()
        done.set_result(None)
        provisioned: Any = SimpleNamespace(
            **{"shape": self.engine.shape, "gpu": None, "tables": None, "graphs": ()},
            complete=lambda _publish: done,
            close=lambda: self.told.append("engine closed"),
        )
        folder = self._folder
        environment = RunnerEnvironment(
            folder / "c.sock", "m", 1, 7, folder, folder, folder / "config.json"
        )
        return HostService(Task(environment, 1, None), self._version, provisioned)


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch, short_path: Path) -> Iterator[Rig]:
    rig = Rig(monkeypatch, short_path)
    yield rig
    rig.engine.close()


def open_files() -> set[Path]:
    return set(Path("/proc/self/fd").iterdir())


def test_the_engine_is_given_back_after_the_scheduler(rig: Rig) -> None:
    before, threads = open_files(), set(threading.enumerate())
    service = rig.make()
    service.stop()
    assert rig.told == ["launch", "stop"]
    service.close()
    assert rig.told == ["launch", "stop", "close", "engine closed"]
    del service
    gc.collect()  # files that were mapped are closed with their maps
    assert open_files() <= before
    assert set(threading.enumerate()) <= threads


@pytest.mark.parametrize(
    ("owner", "name", "told"),
    [
        ("HostDrivenScheduler", None, []),
        ("LeaseKeeper", "__init__", ["close"]),
        ("LeaseKeeper", "start", ["launch", "stop", "close"]),
    ],
)
def test_a_service_that_cannot_begin_leaves_nothing_open(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, owner: str, name: str | None, told: list[str]
) -> None:
    if name is None:
        monkeypatch.setattr(host_service, owner, fail)
    else:
        monkeypatch.setattr(getattr(host_service, owner), name, fail)
    before, threads = open_files(), set(threading.enumerate())
    with pytest.raises(Trouble):
        rig.make()
    gc.collect()
    assert open_files() <= before
    assert set(threading.enumerate()) <= threads
    assert rig.told == told, "the engine is still its maker's"
