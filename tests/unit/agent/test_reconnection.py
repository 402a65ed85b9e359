"""An agent whose connection breaks: what it asks of its runner, and when it gives up."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from blink_persistent.agent import attach
from blink_persistent.agent.agent import Agent
from blink_persistent.agent.attach import Refused
from blink_persistent.agent.memory_port import MemoryPort
from blink_persistent.agent.port import PortLost
from blink_persistent.agent.reconnection import reconnect
from blink_persistent.lines import LineSocket
from blink_persistent.testing.agent_thread import lease_limits
from blink_persistent.testing.scripted_harness import ScriptedHarness
from blink_persistent.testing.scripted_shape import ScriptedShape
from blink_persistent.testing.simulated_port import SimulatedPort

SHAPE = ScriptedShape(epoch=3)
ATTACHED = {"type": "attached", "transport": "simulated", "epoch": 3}
UNREACHABLE = {"type": "unreachable", "reason": "no answer"}
REFUSED = {"type": "refused", "reason": "the ranges were taken back"}


class Broken:
    """An agent that has lost its connection, and the other end of its link to the runner.

    `ports` are those that it has opened since.
    """

    def __init__(self, directory: Path) -> None:
        self.harness = ScriptedHarness(SHAPE)
        self.ports: list[SimulatedPort] = []
        self.first = self.open()
        self.agent = Agent(self.first, directory / "workers.sock", lease_limits(SHAPE))
        self.agent.turn()
        self.first.cut()
        with pytest.raises(PortLost) as lost:
            self.agent.run([])
        self.lost = lost.value
        mine, theirs = socket.socketpair()
        self.link, self.runner = LineSocket(mine), LineSocket(theirs)
        self.stop = os.eventfd(0)
        self.asked = 0

    def open(self, *_: Any) -> SimulatedPort:
        memory = MemoryPort(self.harness.ring._memory, first_range=0, ranges=1)
        port = SimulatedPort(memory, self.harness.ring, chance=random.Random(1))
        self.ports.append(port)
        return port

    def reconnect(self, *answers: dict[str, Any], seconds: float = 60.0) -> bool:
        """With a runner that says this and then nothing."""

        def run() -> None:
            with contextlib.suppress(OSError, ValueError):  # the agent has closed its end
                for answer in answers:
                    assert self.runner.first() == {"type": "attach again"}
                    self.asked += 1
                    self.runner.send(answer)
                self.runner.first()

        runner = threading.Thread(target=run)
        runner.start()
        try:
            return reconnect(self.agent, self.link, self.lost, stop=self.stop, seconds=seconds)
        finally:
            self.link.close()
            runner.join()

    def close(self) -> None:
        self.agent.close()
        self.runner.close()
        self.harness.close()
        os.close(self.stop)


@pytest.fixture
def broken(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broken]:
    broken = Broken(short_path)
    monkeypatch.setattr(attach, "_OPENERS", {"simulated": broken.open})
    yield broken
    broken.close()


def test_it_goes_on_over_another_connection(broken: Broken) -> None:
    assert broken.reconnect(ATTACHED)
    assert len(broken.ports) == 2
    broken.agent.turn()
    assert broken.ports[1].traffic.writes > 0  # all words were sent again


def test_it_asks_until_the_runner_can(broken: Broken) -> None:
    assert broken.reconnect(UNREACHABLE, UNREACHABLE, ATTACHED)
    assert broken.asked == 3
    broken.agent.turn()


def test_a_connection_that_breaks_at_once_is_not_the_last(
    broken: Broken, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = broken.open

    def breaks_once(*_: Any) -> SimulatedPort:
        port = opened()
        if len(broken.ports) == 2:
            port.cut_after = 0
        return port

    monkeypatch.setattr(attach, "_OPENERS", {"simulated": breaks_once})
    assert broken.reconnect(ATTACHED, ATTACHED)
    broken.agent.turn()


def test_ranges_taken_back_are_not_asked_for_again(broken: Broken) -> None:
    with pytest.raises(Refused, match="the ranges were taken back"):
        broken.reconnect(REFUSED)
    assert broken.asked == 1


def test_another_ring_is_no_continuation(broken: Broken) -> None:
    other = {**ATTACHED, "epoch": 4}
    with pytest.raises(PortLost, match="the ring's epoch is 3, not 4"):
        broken.reconnect(other, seconds=1e-3)


def test_the_time_is_limited(broken: Broken) -> None:
    with pytest.raises(PortLost, match="no further connection: the runner cannot: no answer"):
        broken.reconnect(UNREACHABLE, seconds=1e-3)


def test_what_cannot_be_resumed_is_not_tried(broken: Broken) -> None:
    with pytest.raises(PortLost) as lost:
        reconnect(broken.agent, broken.link, broken.lost, stop=broken.stop, seconds=0)
    assert lost.value is broken.lost


def test_it_stops_when_told_to(broken: Broken) -> None:
    os.eventfd_write(broken.stop, 1)
    assert not broken.reconnect(UNREACHABLE)


def test_it_ends_with_the_runner(broken: Broken) -> None:
    broken.runner.close()
    assert not broken.reconnect()
