"""Random lives of requests against a plain model of what each must get (hypothesis).

The machine plays frontends, the provisioner, the host and the engine; the scheduler runs pass by
pass. After every pass each request is compared with its answer by the plain rule, and each
launched step is audited (order, rows, blocks).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

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

from blink_persistent.ring import Reason, SlotState
from blink_persistent.testing.observed import Command, Outcome
from blink_persistent.testing.random_requests import any_request
from blink_persistent.testing.scripted_harness import ScriptedHarness
from blink_persistent.testing.scripted_request import Answer
from blink_persistent.testing.scripted_shape import ScriptedShape
from blink_persistent.testing.step_audit import StepAudit

RANGES = 2
PLACES = tuple(256 * range_ + slot for range_ in range(RANGES) for slot in (0, 1, 2, 3, 254, 255))
OVER = (SlotState.DECODE_COMPLETED, SlotState.EMPTY)
RUNNING = (SlotState.DECODE_PROCESSING, SlotState.DECODE_PAUSED)
NEXT_STATES: dict[SlotState | None, tuple[SlotState, ...]] = {
    None: (SlotState.PREFILL_PENDING, SlotState.PREFILL_PROCESSING, SlotState.DECODE_COMPLETED),
    SlotState.PREFILL_PENDING: (SlotState.PREFILL_PROCESSING, SlotState.DECODE_COMPLETED),
    SlotState.PREFILL_PROCESSING: (*RUNNING, SlotState.DECODE_COMPLETED),
    SlotState.DECODE_PROCESSING: (*RUNNING, SlotState.DECODE_COMPLETED),
    SlotState.DECODE_PAUSED: (*RUNNING, SlotState.DECODE_COMPLETED),
    SlotState.DECODE_COMPLETED: (SlotState.EMPTY,),
    SlotState.EMPTY: (),
}
MIXED = ScriptedShape(
    ranges=RANGES, max_rows=5, max_sequences=3, max_prefill_tokens=64, max_mixed_tokens=20
)
SHAPES = {
    "roomy": ScriptedShape(ranges=RANGES, max_rows=5, max_sequences=4, epoch=7),
    "few blocks": ScriptedShape(ranges=RANGES, max_rows=5, max_sequences=1, block_count=20),
    "tiny blocks": ScriptedShape(
        ranges=RANGES, block_size=1, block_count=70, max_prefill_tokens=16, eos_every=11
    ),
    "NaN": ScriptedShape(ranges=RANGES, max_rows=3, block_count=30, poison_token=50),
    "deterministic": ScriptedShape(
        ranges=RANGES, max_rows=5, block_count=20, tells_phases=True, deterministic=True
    ),
    "one row": ScriptedShape(ranges=RANGES, max_rows=1, max_prefill_tokens=33),
    "fixed rows": ScriptedShape(ranges=RANGES, rows_movable=False, eos_every=11, poison_token=50),
    "fixed, chunked": ScriptedShape(
        ranges=RANGES, rows_movable=False, max_sequences=1, max_prefill_tokens=16
    ),
    "short chunks": ScriptedShape(ranges=RANGES, max_prefill_tokens=64, prefill_chunk=7),
    "mixed": replace(MIXED, mixed_sequences=2),
    "mixed, few blocks": replace(MIXED, block_count=20, prefill_chunk=5, max_sequences=1),
    "mixed, tiny blocks": replace(MIXED, block_size=1, block_count=70, eos_every=11),
    "mixed, NaN": replace(MIXED, block_count=30, poison_token=50, prefill_chunk=2),
    "mixed, deterministic": replace(
        MIXED, block_count=20, tells_phases=True, deterministic=True, prefill_chunk=9
    ),
    "mixed, in part": replace(
        MIXED, block_count=40, max_mixed_rows=2, mixed_sequences=2, prefill_chunk=33
    ),
    "mixed, fixed rows": replace(MIXED, rows_movable=False, eos_every=11, prefill_chunk=12),
}


@dataclass
class Held:
    """What the model knows of one request in flight."""

    ticket: int
    answer: Answer
    lazy: bool  # releases when told to, not as soon as it may
    state: SlotState | None = None  # as last read; None: not claimed yet
    tokens: tuple[int, ...] = ()
    cancelled: bool = False
    released: bool = False


class SchedulerMachine(RuleBasedStateMachine):
    def __init__(self, shape: ScriptedShape) -> None:
        super().__init__()
        self.harness = ScriptedHarness(shape)
        self.audit = StepAudit(self.harness)
        self.held: dict[int, Held] = {}
        self.orphans: set[int] = set()
        self.parked = self.closing = self.landing = False

    @initialize(
        first=st.sampled_from([1, 255, 0x7FFFFFFE]),
        deaths=st.integers(0, 3),
    )
    def start(self, first: int, deaths: int) -> None:
        self.tickets = dict.fromkeys(PLACES, first - 1)
        self.deaths = deaths  # still to come: they end much at once
        self.batches = 0

    @rule(seed=st.integers(0, 1 << 40))
    def submit(self, seed: int) -> None:
        """Several frontends at once, each in slots of its own."""
        chance = random.Random(seed)
        self.batches += 1
        free = [p for p in PLACES if p not in self.held and p // 256 not in self.orphans]
        chance.shuffle(free)
        wanted = [any_request(chance) for _ in range(chance.randint(1, 6))]
        for place, request in zip(free, wanted, strict=False):
            self.tickets[place] += 1
            answer = request.answer(self.harness.shape)
            answer = Answer((), Reason.CLOSED) if self.closing else answer
            self.held[place] = Held(self.tickets[place], answer, chance.random() < 0.2)
            self.harness.submit(place, self.tickets[place], request)

    @rule(place=st.sampled_from(PLACES))
    def cancel(self, place: int) -> None:
        """Early, in time, after completion, or for a slot that is not in use."""
        self.harness.ring.atomic.cancel(place, max(self.tickets[place], 0))
        if held := self.held.get(place):
            held.cancelled = True

    @rule(place=st.sampled_from(PLACES))
    def release(self, place: int) -> None:
        if held := self.held.get(place):
            self.harness.ring.atomic.release(place, held.ticket)
            held.released = True

    @precondition(lambda self: self.deaths > 0)
    @rule(range_=st.integers(0, RANGES - 1))
    def owner_dies(self, range_: int) -> None:
        """Its words pass on; the successor starts only when every slot is {submit, EMPTY}."""
        self.deaths -= 1
        self.orphans.add(range_)
        for place in PLACES:
            if place // 256 == range_ and self.harness.take_over(place) and place in self.held:
                self.held[place].cancelled = self.held[place].released = True

    @rule(count=st.integers(1, 90), finish=st.sampled_from([True, True, True, False]))
    def passes(self, count: int, finish: bool) -> None:
        for _ in range(count):
            self.one_pass(finish)

    @rule()
    def step_fails(self) -> None:
        """The next step ends with an error: just those it served end, with their tokens."""
        for _ in range(3):
            if self.harness.flight is None:
                self.one_pass(finish=False)
        if self.harness.flight is None:
            return
        for slot in self.audit.in_flight:
            held = self.held[slot]
            held.answer, held.cancelled = Answer(held.tokens, Reason.ENGINE_ERROR), False
        self.finish_step(error=9)
        self.one_pass(finish=False)

    @rule(resume=st.sampled_from([True, True, True, False]))
    def park(self, resume: bool) -> None:
        """Parked at least until the running step has ended and one more pass was made."""
        self.harness.scheduler.command(Command.PARK)
        self.parked = True
        for _ in range(3):
            self.one_pass(finish=True)
        if resume:
            self.resume()

    @precondition(lambda self: self.parked)
    @rule()
    def resume(self) -> None:
        self.harness.scheduler.command(Command.RUN)
        self.parked = False

    @precondition(lambda self: self.batches >= 6 and not self.closing)
    @rule()
    def close(self) -> None:
        """Everything not claimed by now ends CLOSED, and only that."""
        self.closing = True
        self.harness.scheduler.close()
        for held in self.held.values():
            if held.state is None:
                held.answer = Answer((), Reason.CLOSED)

    def one_pass(self, finish: bool) -> None:
        in_step = self.harness.flight is not None or self.landing
        self.landing = False
        outcome = self.harness.run_pass()
        self.audit.after_pass()
        for place in list(self.held):
            self.check(place)
        self.orphans = {r for r in self.orphans if any(p // 256 == r for p in self.held)}
        if self.parked and not in_step:
            assert outcome == Outcome.PARK
        if outcome == Outcome.IDLE:
            assert all(held.state in OVER for held in self.held.values()), "idle with work waiting"
        if finish and self.harness.flight is not None:
            self.finish_step()

    def finish_step(self, error: int = 0) -> None:
        self.harness.finish_step(error)
        self.landing = True

    def check(self, place: int) -> None:
        held = self.held[place]
        status = self.harness.accepted(place, held.ticket)
        if status is None:
            assert held.state is None, f"slot {place} lost ticket {held.ticket}"
            return
        if status.state != held.state:
            assert status.state in NEXT_STATES[held.state], f"{held.state} -> {status.state}"
            held.state = status.state
        if status.state == SlotState.EMPTY:
            assert held.released, "EMPTY without a release"
            assert status.generated == 0
            del self.held[place]
            return
        tokens = self.harness.output(place, held.ticket)
        assert len(tokens) >= len(held.tokens), "generated fell"
        assert tokens == held.answer.tokens[: len(tokens)], f"slot {place}: wrong tokens"
        held.tokens = tokens
        if status.state != SlotState.DECODE_COMPLETED:
            assert status.reason == Reason.NONE
            return
        if not held.lazy:
            self.release(place)
        if not (held.cancelled and status.reason == Reason.CANCELLED):
            assert Answer(tokens, status.reason) == held.answer

    def teardown(self) -> None:
        try:
            self.resume()
            for place in self.held:
                self.release(place)
            for _ in range(20_000):
                if not self.held:
                    break
                self.one_pass(finish=True)
            self.one_pass(finish=True)
            assert not self.held, f"never ended: {self.held}"
            assert all(self.harness.status(p).state == SlotState.EMPTY for p in PLACES)
            assert self.harness.counters("rows_used", "blocks_used", "waiting") == [0, 0, 0]
            claims, completions = self.harness.counters("claims", "completions")
            assert claims == completions
        finally:
            self.harness.close()


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_model(shape: ScriptedShape) -> None:
    run_state_machine_as_test(
        lambda: SchedulerMachine(shape),  # type: ignore[arg-type]
        settings=settings(
            max_examples=60, stateful_step_count=40, deadline=None, derandomize=True, database=None
        ),
    )


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_model_at_length(shape: ScriptedShape) -> None:
    run_state_machine_as_test(
        lambda: SchedulerMachine(shape),  # type: ignore[arg-type]
        settings=settings(max_examples=200, stateful_step_count=60, deadline=None),
    )
