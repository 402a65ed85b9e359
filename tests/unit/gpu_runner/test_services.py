"""How the owner puts a version in service: by whom it is scheduled, and what it cannot load."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from blink_persistent.engines.place import GpuPlace, SchedulerKind
from blink_persistent.gpu.driver import CudaError
from blink_persistent.gpu_runner import __main__ as services
from blink_persistent.gpu_runner.service import GpuLost, Task
from blink_server.backend import ModelVersion
from blink_server.control import RunnerEnvironment
from blink_server.errors import EngineFailure, MemoryRefused

GIB = 1 << 30
ENVIRONMENT = RunnerEnvironment(
    Path("control.sock"), "m", 3, 7, Path("runner-1"), Path("m/3"), Path("config.json")
)
LIMITS = {"slots": 1024, "context_length": 8192, "grammar_mib": 26}


class FakeGpu:
    """Tells how much memory is free, as long as its context lives."""

    def __init__(self, free: list[int]) -> None:
        self._free = free
        self.lives = True

    def free_bytes(self) -> int:
        if not self.lives:
            raise CudaError("cuMemGetInfo: CUDA_ERROR_ILLEGAL_ADDRESS")
        return self._free[0] if len(self._free) == 1 else self._free.pop(0)

    def make_current(self) -> None:
        pass

    def close(self) -> None:
        pass


class FakeEngine:
    """Also what it provisions, and an assignment to it."""

    def __init__(self, scheduler: SchedulerKind = SchedulerKind.DEVICE) -> None:
        self.version = ModelVersion("m", 3, Path("m/3"), {"limits": LIMITS})
        self.engine = self
        self.gpu = FakeGpu([0])
        self.gpu_place = GpuPlace(0, scheduler, ())
        self.trouble: Exception | None = None
        self.closed = 0

    def place(self, version: ModelVersion) -> GpuPlace:
        return self.gpu_place

    def estimate(self, version: ModelVersion) -> int:
        return 2 * GIB

    def provision(self, **options: Any) -> FakeEngine:
        if self.trouble is not None:
            raise self.trouble
        return self

    def close(self) -> None:
        self.closed += 1


class Rig:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free = [8 * GIB, 5 * GIB]
        self.gpu = FakeGpu(self.free)
        self.engine = FakeEngine()
        self.start_trouble: Exception | None = None
        monkeypatch.setattr(services, "Gpu", lambda: self.gpu)
        monkeypatch.setattr(services, "Assignment", SimpleNamespace(read=lambda _: self.engine))
        for kind in ("HostService", "DeviceService"):
            monkeypatch.setattr(services, kind, lambda *_, kind=kind: self._start(kind))

    def _start(self, kind: str) -> Any:
        if self.start_trouble is not None:
            raise self.start_trouble
        done: Future[None] = Future()
        done.set_result(None)
        return SimpleNamespace(kind=kind, completion=done, memory_bytes=0)

    def serve(self, scheduler: SchedulerKind | None = None) -> Any:
        task = Task(ENVIRONMENT, 1, scheduler)
        return services.GpuServices()(task, lambda stage, fraction: None)


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(monkeypatch)


@pytest.mark.parametrize(
    ("configured", "asked", "kind"),
    [
        ("device", None, "DeviceService"),
        ("host", None, "HostService"),
        ("device", "host", "HostService"),
        ("host", "device", "DeviceService"),
    ],
)
def test_who_schedules_is_the_servers_word_before_the_versions(
    rig: Rig, configured: str, asked: str | None, kind: str
) -> None:
    rig.engine = FakeEngine(SchedulerKind(configured))
    service = rig.serve(SchedulerKind(asked) if asked else None)
    assert (service.kind, service.memory_bytes) == (kind, 3 * GIB)


def test_what_does_not_fit_with_its_ring_is_not_loaded(rig: Rig) -> None:
    rig.free[:] = [2 * GIB]
    with pytest.raises(MemoryRefused, match=r"needs 2\.13 GiB, 2\.00 GiB of the GPU are free"):
        rig.serve()


@pytest.mark.parametrize(
    "error",
    [
        CudaError("cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY"),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB\nand more lines"),
    ],
)
def test_memory_that_runs_out_while_it_is_loaded_is_told_as_that(
    rig: Rig, error: Exception
) -> None:
    rig.engine.trouble = error
    with pytest.raises(MemoryRefused, match=r"^memory: [^\n]*$"):
        rig.serve()


def test_a_dead_context_is_the_gpus_end(rig: Rig) -> None:
    rig.engine.trouble = CudaError("cuGraphLaunch: CUDA_ERROR_ILLEGAL_ADDRESS")
    rig.free.insert(0, 8 * GIB)
    original = rig.engine.provision

    def provision(**options: Any) -> FakeEngine:
        rig.gpu.lives = False
        return original(**options)

    rig.engine.provision = provision  # type: ignore[method-assign]
    with pytest.raises(GpuLost, match="context is lost: cuGraphLaunch"):
        rig.serve()


@pytest.mark.parametrize(
    ("trouble", "closed"), [(EngineFailure("its agent"), 1), (GpuLost("a step hangs"), 0)]
)
def test_what_cannot_be_started_is_given_back_unless_that_would_hang(
    rig: Rig, trouble: Exception, closed: int
) -> None:
    rig.start_trouble = trouble
    with pytest.raises(type(trouble)):
        rig.serve()
    assert rig.engine.closed == closed
