"""Random lives of requests behind an agent and a slow network, against a plain model (hypothesis).

The machine plays workers, the keeper of their leases, the agent's supervisor and the network; the
scheduler runs pass by pass, also between any two moments of a read or a write. What the mirror
shows is compared with each request's answer by the plain rule.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from blink_persistent.agent.memory_port import MemoryPort
from blink_persistent.agent.port import PortLost
from blink_persistent.agent.relay import Relay
from blink_persistent.ring import Reason, SlotState
from blink_persistent.testing.plain_frontend import PlainFrontend
from blink_persistent.testing.random_requests import any_request
from blink_persistent.testing.scripted_harness import ScriptedHarness
from blink_persistent.testing.scripted_request import Answer
from blink_persistent.testing.scripted_shape import ScriptedShape
from blink_persistent.testing.simulated_port import SimulatedPort

RANGES = 2  # of the agent, behind one that is not its own
HALF = 0x7FFFFFFF  # a ticket so far behind is older, one further is newer
PLACES = tuple(256 * range_ + slot for range_ in range(RANGES) for slot in (0, 1, 2, 17, 255))
SHAPES = {
    "roomy": ScriptedShape(ranges=1 + RANGES, max_rows=5, max_sequences=4, epoch=7),
    "few blocks": ScriptedShape(ranges=1 + RANGES, max_rows=5, block_count=20, eos_every=11),
}


@dataclass
class Held:
    """A worker's request in flight."""

    ticket: int
    answer: Answer
    tokens: tuple[int, ...] = ()
    completed: bool = False
    cancelled: bool = False
    released: bool = False


class AgentMachine(RuleBasedStateMachine):
    def __init__(self, shape: ScriptedShape) -> None:
        super().__init__()
        self.shape = shape
        self.harness = ScriptedHarness(shape)
        self.held: dict[int, Held] = {}
        self.orphans: set[int] = set()

    @initialize(
        seed=st.integers(0, 1 << 40),
        first=st.sampled_from([0, 255, 0xFFFFFFFD]),
        accidents=st.integers(0, 4),
    )
    def start(self, seed: int, first: int, accidents: int) -> None:
        self.accidents = accidents  # still to come: they end much at once
        self.chance = random.Random(seed)
        for ticket in range(0, first + 1, HALF):  # as after long use: all is {first, EMPTY}
            self.use_slots(min(first, ticket + HALF))
        self.start_agent()
        self.settle()

    def use_slots(self, ticket: int) -> None:
        for place in PLACES:
            slot = self.shape.slots_per_range + place
            self.harness.ring.atomic.submit(slot, ticket)
            self.harness.ring.atomic.release(slot, ticket)
        self.harness.settle()

    def connect(self) -> SimulatedPort:
        memory = self.harness.ring._memory
        inner = MemoryPort(memory, first_range=1, ranges=RANGES)
        return SimulatedPort(
            inner, self.harness.ring, chance=self.chance, meanwhile=self.perhaps_pass
        )

    def start_agent(self) -> None:
        self.port = self.connect()
        self.relay = Relay(self.port, lambda _range: None)
        self.workers = PlainFrontend(self.relay.mirror.ring, self.shape)
        self.serving = False

    def perhaps_pass(self) -> None:
        if self.chance.random() < 0.3:
            self.one_pass()

    def one_pass(self) -> None:
        if self.harness.flight is not None and self.chance.random() < 0.7:
            self.harness.finish_step()
        self.harness.run_pass()

    @rule(seed=st.integers(0, 1 << 40))
    def submit(self, seed: int) -> None:
        if not self.serving:
            return
        chance = random.Random(seed)
        free = [p for p in PLACES if p not in self.held and p // 256 not in self.orphans]
        for place in chance.sample(free, min(len(free), chance.randint(1, 5))):
            request = any_request(chance)
            ticket = self.workers.submit(place, request)
            self.held[place] = Held(ticket, request.answer(self.shape))

    @rule(place=st.sampled_from(PLACES))
    def cancel(self, place: int) -> None:
        if held := self.held.get(place):
            self.workers.cancel(place)
            held.cancelled = True

    @rule(count=st.integers(1, 12))
    def passes(self, count: int) -> None:
        for _ in range(count):
            self.one_pass()

    @rule(count=st.integers(1, 6))
    def turns(self, count: int) -> None:
        self.turn_often(count)

    @precondition(lambda self: self.accidents > 0)
    @rule(range_=st.integers(0, RANGES - 1))
    def worker_dies(self, range_: int) -> None:
        """The keeper of the leases, over the mirror; the range is given away when all is EMPTY."""
        if not self.serving:
            return
        self.accidents -= 1
        self.orphans.add(range_)
        for place in PLACES:
            if place // 256 == range_ and place in self.held:
                self.workers.cancel(place)
                self.workers.release(place)
                self.held[place].cancelled = self.held[place].released = True

    @precondition(lambda self: self.accidents > 0)
    @rule(calls=st.integers(0, 8), seed=st.integers(0, 1 << 40))
    def agent_dies(self, calls: int, seed: int) -> None:
        """All its workers lose what they had; the successor begins with the ring's words."""
        self.lose_connection(calls, seed)
        self.relay.mirror.close()
        self.held.clear()
        self.orphans.clear()
        self.start_agent()

    @precondition(lambda self: self.accidents > 0)
    @rule(calls=st.integers(0, 8), seed=st.integers(0, 1 << 40), between=st.integers(0, 20))
    def connection_is_lost(self, calls: int, seed: int, between: int) -> None:
        self.lose_connection(calls, seed)
        self.passes(between)
        self.port = self.connect()
        self.relay.resume(self.port)

    def lose_connection(self, calls: int, seed: int) -> None:
        """While requests are being sent, perhaps, after so many calls of the port."""
        self.accidents -= 1
        self.submit(seed)
        self.port.cut_after = calls
        with pytest.raises(PortLost):
            self.turn_often(calls + 1)

    def turn_often(self, count: int) -> None:
        for _ in range(count):
            self.turn()

    def settle(self) -> None:
        """Everything in flight ends, and its slots are empty."""
        for _ in range(600):
            if self.serving and not self.held:
                return
            for _ in range(5):
                self.one_pass()
            self.turn()
        pytest.fail(f"never ended: {self.held}, serving: {self.serving}")

    def turn(self) -> None:
        self.relay.turn()
        self.serving = self.serving or not self.relay.busy
        for place in list(self.held):
            self.check(place)
        self.orphans = {r for r in self.orphans if any(p // 256 == r for p in self.held)}

    def check(self, place: int) -> None:
        held = self.held[place]
        status = self.workers.accepted(place)
        if status is None:
            assert not held.tokens, "an accepted ticket was lost"
            return
        assert status.ticket == held.ticket
        if status.state is SlotState.EMPTY:
            assert held.released, "EMPTY without a release"
            del self.held[place]
            return
        tokens = self.workers.output(place)
        assert len(tokens) >= len(held.tokens), "generated fell"
        assert tokens == held.answer.tokens[: len(tokens)], f"slot {place}: wrong tokens"
        held.tokens = tokens
        if status.state is SlotState.DECODE_COMPLETED:
            if not (held.cancelled and status.reason is Reason.CANCELLED):
                assert Answer(tokens, status.reason) == held.answer
            timing = self.relay.mirror.ring.timings[place]
            assert timing["finished_ns"] >= timing["claimed_ns"] > 0
            self.workers.release(place)
            held.released = True

    def teardown(self) -> None:
        try:
            self.settle()
            statuses = self.harness.ring.status["word"] >> 32 & 0xFF
            assert not statuses.any(), "not every slot ended EMPTY"
            claims, completions = self.harness.counters("claims", "completions")
            assert claims == completions
            for place in range(RANGES * 256):
                assert self.workers.is_empty(place), "the mirror lags behind"
            assert not self.harness.ring.words["submit"][:256].any(), "another's range was written"
        finally:
            self.relay.close()
            self.harness.close()


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_model(shape: ScriptedShape) -> None:
    run_state_machine_as_test(
        lambda: AgentMachine(shape),  # type: ignore[arg-type]
        settings=settings(
            max_examples=100, stateful_step_count=30, deadline=None, derandomize=True, database=None
        ),
    )


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_model_at_length(shape: ScriptedShape) -> None:
    run_state_machine_as_test(
        lambda: AgentMachine(shape),  # type: ignore[arg-type]
        settings=settings(max_examples=300, stateful_step_count=60, deadline=None),
    )
