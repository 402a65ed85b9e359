from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from blink_persistent.agent.memory_port import MemoryPort
from blink_persistent.agent.relay import Relay
from blink_persistent.testing.plain_frontend import PlainFrontend
from blink_persistent.testing.scripted_harness import ScriptedHarness
from blink_persistent.testing.scripted_shape import ScriptedShape
from blink_persistent.testing.simulated_port import SimulatedPort


class Machine:
    """A ring, an agent's relay over a simulated network, and workers before its mirror.

    The agent has all ranges but the ring's first. `rung` are the ranges with news.
    """

    def __init__(self, shape: ScriptedShape) -> None:
        self.shape = shape
        self.harness = ScriptedHarness(shape)
        self.rung: list[int] = []
        self.restart()

    def connect(self) -> SimulatedPort:
        inner = MemoryPort(self.harness.ring._memory, first_range=1, ranges=self.shape.ranges - 1)
        return SimulatedPort(inner, self.harness.ring, chance=random.Random(1))

    def restart(self) -> None:
        """A new agent over the ring as it is."""
        self.port = self.connect()
        self.relay = Relay(self.port, self.rung.append)
        self.workers = PlainFrontend(self.relay.mirror.ring, self.shape)

    def ring_slot(self, slot: int) -> int:
        return self.shape.slots_per_range + slot

    def turn_until_idle(self) -> None:
        """Let everything in flight end; completed requests must have been released."""
        for _ in range(100):
            self.relay.turn()
            self.harness.settle()
            if not self.relay.busy:
                return
        raise AssertionError("requests are in flight for ever")


@pytest.fixture
def machine() -> Iterator[Machine]:
    machine = Machine(ScriptedShape(ranges=3, epoch=7))
    yield machine
    machine.relay.close()
    machine.harness.close()
