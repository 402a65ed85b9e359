"""One version's life between its link and what serves it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from blink_persistent.engines.place import SchedulerKind
from blink_persistent.gpu_runner.service import GpuLost, Service, Task
from blink_persistent.gpu_runner.turns import Turns
from blink_persistent.gpu_runner.version_life import VersionLife
from blink_persistent.lines import LineSocket
from blink_server.backend import Endpoint
from blink_server.control import RunnerEnvironment
from blink_server.errors import EngineFailure, MemoryRefused, Unavailable

LOAD = {"type": "load", "threads": 2, "scheduler": None, "host_ranges": None}
ENVIRONMENT = RunnerEnvironment(
    control_socket=Path("control.sock"),
    model="m",
    version=3,
    epoch=7,
    runtime_directory=Path("runner-1"),
    version_directory=Path("m/3"),
    config_file=Path("runner-1/config.json"),
)


class FakeService:
    """Serves nothing; tells what was asked of it."""

    endpoint = Endpoint("shm", {"socket": "ring.sock"})
    memory_bytes = 5
    check_seconds = 0.01

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.trouble: Exception | None = None
        self.drained = threading.Event()
        self.asked_for_drained = threading.Event()

    def check(self) -> None:
        if self.trouble is not None:
            raise self.trouble

    def close_ring(self) -> None:
        self.calls.append("close_ring")

    def is_drained(self) -> bool:
        self.asked_for_drained.set()
        return self.drained.is_set()

    def stop(self) -> None:
        self.calls.append("stop")

    def close(self) -> None:
        self.calls.append("close")


class Rig:
    """A life, and the link's end of its connection."""

    def __init__(self) -> None:
        mine, theirs = socket.socketpair()
        mine.settimeout(20)
        self.link = LineSocket(mine)
        self.service = FakeService()
        self.loading: Callable[[Callable[[str, float], None]], None] = lambda progress: None
        self.tasks: list[Task] = []
        self.lost: list[GpuLost] = []
        self.life = VersionLife(
            theirs, self._make, Turns(), on_lost=self.lost.append, leaves=lambda life: True
        )
        self.life.start()

    def _make(self, task: Task, progress: Callable[[str, float], None]) -> Service:
        self.tasks.append(task)
        self.loading(progress)
        return self.service

    def load(self) -> None:
        variables = ENVIRONMENT.variables()
        self.link.send({**LOAD, "environment": variables})

    def hear(self, kind: str) -> dict[str, Any]:
        """The next message of this kind; others are passed over."""
        while not self.link.ended:
            message = self.link.first()
            if message["type"] == kind:
                return message
        raise AssertionError(f"no {kind!r}")


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.link.close()
    rig.life.join(20)
    assert not rig.life.is_alive()


def test_it_is_loaded_as_told_and_served_until_stopped(rig: Rig) -> None:
    variables = ENVIRONMENT.variables()
    rig.link.send({**LOAD, "environment": variables, "scheduler": "host", "host_ranges": 3})
    ready = rig.hear("ready")
    assert ready["address"] == {"socket": "ring.sock"}
    assert ready["memory_bytes"] == 5
    assert rig.tasks == [Task(ENVIRONMENT, 2, SchedulerKind.HOST, 3)]
    rig.link.send({"type": "stop"})
    assert rig.hear("ended")["leaving"] is True
    assert rig.service.calls == ["stop", "close"]


def test_a_drain_waits_for_what_is_in_flight(rig: Rig) -> None:
    rig.load()
    rig.hear("ready")
    rig.link.send({"type": "drain", "seconds": 60})
    assert rig.service.asked_for_drained.wait(20)
    assert rig.service.calls == ["close_ring"]
    rig.service.drained.set()
    rig.hear("ended")
    assert rig.service.calls == ["close_ring", "stop", "close"]


def test_a_drain_ends_with_its_time(rig: Rig) -> None:
    rig.load()
    rig.hear("ready")
    rig.link.send({"type": "drain", "seconds": 0.05})
    rig.hear("ended")
    assert rig.service.calls == ["close_ring", "stop", "close"]


def test_the_links_end_is_the_versions(rig: Rig) -> None:
    rig.load()
    rig.hear("ready")
    rig.link.close()
    rig.life.join(20)
    assert rig.service.calls == ["stop", "close"]


def test_a_load_is_given_up_when_its_link_goes(rig: Rig) -> None:
    gone = threading.Event()

    def load(progress: Callable[[str, float], None]) -> None:
        assert gone.wait(20)
        progress("weights", 0.5)
        pytest.fail("it went on loading")

    rig.loading = load
    rig.load()
    rig.link.close()
    gone.set()
    rig.life.join(20)
    assert rig.service.calls == []


def test_a_link_that_says_nothing_is_let_go(rig: Rig) -> None:
    rig.link.close()
    rig.life.join(20)
    assert rig.tasks == []


@pytest.mark.parametrize(
    ("error", "memory"),
    [(Unavailable("no GPU"), False), (RuntimeError("?"), False), (MemoryRefused("memory"), True)],
)
def test_a_failed_load_is_told_with_its_reason(rig: Rig, error: Exception, memory: bool) -> None:
    def load(progress: Callable[[str, float], None]) -> None:
        progress("weights", 0.25)
        raise error

    rig.loading = load
    rig.load()
    assert rig.hear("progress")["stage"] == "start"
    assert rig.hear("progress") == {"type": "progress", "stage": "weights", "fraction": 0.25}
    assert rig.hear("failed") == {"type": "failed", "reason": str(error), "memory": memory}
    rig.hear("ended")
    assert rig.lost == []


def test_a_version_that_fails_in_service_is_given_back(rig: Rig) -> None:
    rig.load()
    rig.hear("ready")
    rig.service.trouble = EngineFailure("its scheduler has ended")
    assert rig.hear("failed")["reason"] == "its scheduler has ended"
    rig.hear("ended")
    assert rig.service.calls == ["stop", "close"]


def test_a_lost_gpu_is_the_owners_matter(rig: Rig) -> None:
    rig.load()
    rig.hear("ready")
    rig.service.trouble = GpuLost("a step hangs")
    rig.hear("ended")
    assert [str(lost) for lost in rig.lost] == ["a step hangs"]
    assert rig.service.calls == []


def test_nonsense_from_a_link_ends_it(rig: Rig) -> None:
    rig.link.send({**LOAD, "environment": {}})
    rig.hear("ended")
    assert rig.tasks == []


def test_what_a_slow_link_does_not_read_is_left_out(rig: Rig) -> None:
    rig.load()
    rig.hear("ready")
    for _ in range(2000):
        rig.life.say_if_heard("log", line="x" * 1000)
    rig.link.send({"type": "stop"})
    rig.hear("ended")
    assert rig.service.calls == ["stop", "close"]
