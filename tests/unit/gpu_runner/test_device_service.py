"""Which ranges of a version on a GPU are its agent's, and which are reached directly."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from blink_persistent.agent.attach import attach
from blink_persistent.engines.scripted import ScriptedOptions, ScriptedProvisioned
from blink_persistent.gpu_runner import device_service
from blink_persistent.gpu_runner.device_service import DeviceService
from blink_persistent.gpu_runner.residents import Residents
from blink_persistent.gpu_runner.service import Task
from blink_persistent.graph_grid import default_grid
from blink_persistent.ring import LAYOUT_HASH, Condition, create_ring_memory
from blink_persistent.serving import ring_shape
from blink_persistent.testing.memory_gpu import ORDERING, MemoryGpu
from blink_server.backend import ModelVersion
from blink_server.control import RunnerEnvironment
from blink_server.remote.gates import GateOptions
from rdma_frontend.gate import open_gate
from rdma_frontend.testing.fake_verbs import use_fake_verbs

EPOCH, RANGES = 7, 4
LIMITS = {
    **{"context_length": 256, "slots": 256 * RANGES, "max_queue": 16},
    **{"step_timeout_seconds": 30, "grammar_mib": 1},
}
CONFIG = {"deterministic": False, "eos_token_ids": [2], "limits": LIMITS}


class FakeScheduler:
    """Resident, and never at a step."""

    def __init__(self, *_: object) -> None:
        self.stopped = False

    def launch(self) -> None: ...
    def ask_to_park(self) -> None: ...
    def park(self, _seconds: float) -> None: ...
    def error(self) -> str:
        return ""

    def is_idle(self) -> bool:
        return False

    def condition(self) -> Condition:
        return Condition.RUNNING

    def stop(self, _seconds: float) -> None:
        self.stopped = True

    def publish(self, *_: object) -> None: ...


class FakeAgent:
    """Lives."""

    def __init__(self, *_: object) -> None: ...
    def wait_until_serving(self) -> None: ...
    def ended(self) -> str:
        return ""

    def close(self) -> None: ...


class Trouble(Exception):
    """Of a part of a service."""


def fail(*_: object, **__: object) -> Any:
    raise Trouble


class Rig:
    """Makes services on a GPU of the host's memory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._version = ModelVersion("m", 1, folder, CONFIG)
        self._engine = ScriptedProvisioned(self._version, default_grid(4, 64), ScriptedOptions())
        self._file, _ = create_ring_memory(ring_shape(LIMITS), EPOCH)
        self._services: list[DeviceService] = []
        self.residents = Residents()

    def make(self, host_ranges: int | None, **attributes: int) -> DeviceService:
        gpu, folder = MemoryGpu(self._file), self._folder
        gpu.attributes.update(attributes)
        done: Future[None] = Future()
        done.set_result(None)
        provisioned: Any = SimpleNamespace(
            **{"shape": self._engine.shape, "gpu": gpu, "tables": None, "graphs": ()},
            complete=lambda _publish: done,
        )
        environment = RunnerEnvironment(
            folder / "c.sock", "m", 1, EPOCH, folder, folder, folder / "config.json"
        )
        task = Task(environment, 1, None, host_ranges)
        self._services.append(DeviceService(task, self._version, provisioned, self.residents))
        return self._services[-1]

    def stop(self, service: DeviceService) -> None:
        self._services.remove(service)
        service.stop()

    def close(self) -> None:
        for service in self._services:
            service.stop()
        self._engine.close()
        os.close(self._file)


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch, short_path: Path) -> Iterator[Rig]:
    monkeypatch.setattr(device_service, "DeviceScheduler", FakeScheduler)
    monkeypatch.setattr(device_service, "AgentProcess", FakeAgent)
    rig = Rig(short_path)
    yield rig
    rig.close()


def agents_ranges(service: DeviceService) -> tuple[int, int]:
    link, offer, _ = attach(str(Path(service.endpoint.address["socket"]).with_name("offer.sock")))
    link.send({"type": "detach"})
    link.close()
    return offer["first_range"], offer["ranges"]


async def test_all_but_the_hosts_ranges_are_reached_directly(rig: Rig) -> None:
    service = rig.make(1)
    assert agents_ranges(service) == (0, 1)
    with use_fake_verbs():
        options = GateOptions("mlx5_0", RANGES - 1, f"{LAYOUT_HASH:016x}")
        gate = await open_gate("m:1", service.endpoint, options)
        offer = await gate.offer()
        assert (offer["first_range"], offer["ranges"], offer["epoch"]) == (1, RANGES - 1, EPOCH)
        assert offer["limits"]["max_queue"] == 16
        service.check()
        assert gate.in_use() == 0
        rig.stop(service)
        await gate.lost.wait()
        gate.close()


@pytest.mark.parametrize(("host_ranges", "attributes"), [(None, {}), (1, {ORDERING: 0})])
def test_all_are_the_agents_where_none_can_be(
    rig: Rig, host_ranges: int | None, attributes: dict[str, int]
) -> None:
    service = rig.make(host_ranges, **attributes)
    assert agents_ranges(service) == (0, RANGES)
    assert "direct" not in service.endpoint.address
    service.check()


def open_files() -> set[Path]:
    return set(Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize(
    "place",
    [
        *("DirectLeases.__init__", "RingOffer.__init__", "RingOffer.start", "DirectLeases.start"),
        *("Residents.add", "FakeAgent.__init__", "FakeAgent.wait_until_serving"),
    ],
)
def test_a_service_that_cannot_begin_leaves_nothing_open(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    before, threads = open_files(), set(threading.enumerate())
    owner, name = place.split(".")
    kinds = {"FakeAgent": FakeAgent, "Residents": Residents}
    monkeypatch.setattr(kinds.get(owner) or getattr(device_service, owner), name, fail)
    with pytest.raises(Trouble):
        rig.make(1)
    gc.collect()  # files that were mapped are closed with their maps
    assert open_files() <= before
    assert set(threading.enumerate()) <= threads
    rig.residents.let_others_in()
    assert rig.residents.parks == 0, "a scheduler was left to be parked"
