"""Random lives of requests against a plain model of what each must get (hypothesis).

The machine plays frontends, the provisioner, the host and the engine; the scheduler runs pass by
pass. After every pass each request is compared with its answer by the plain rule, and each
launched step is audited (order, rows, blocks).
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from blink_persistent.ring import Reason, SlotState
from blink_persistent.testing.observed import Command, Outcome
from blink_persistent.testing.scripted_harness import ScriptedHarness
from blink_persistent.testing.scripted_request import Answer, ScriptedRequest
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
INVALID = [
    {"prompt_length": 0},
    {"prompt_length": 96},
    {"prompt_offset": 0xFFFFFFFF},
    {"output_offset": 0xFFFFFFFF},
    {"logprobs_offset": 0xFFFFFFFF, "logprobs": 1},
    {"stop_count": 0xFFFFFFFF},
    {"bias_count": 0x80000000},
    {"max_tokens": 0},
    {"max_tokens": 97},
    {"logprobs": 22},
    {"priority": 4},
    {"temperature": float("nan")},
    {"temperature": float("inf")},
    {"temperature": -1.0},
    {"top_p": 0.0},
    {"min_p": float("nan")},
    {"repetition_penalty": 0.0},
    {"presence_penalty": float("inf")},
    {"frequency_penalty": float("nan")},
]

shapes = st.builds(
    ScriptedShape,
    ranges=st.just(RANGES),
    rows_movable=st.booleans(),
    max_rows=st.sampled_from([1, 3, 5]),
    max_sequences=st.sampled_from([1, 2, 4]),
    max_prefill_tokens=st.sampled_from([16, 33]),
    block_size=st.sampled_from([1, 4]),
    block_count=st.sampled_from([12, 20, 96]),
    eos_every=st.sampled_from([0, 11]),
    poison_token=st.sampled_from([-1, 50]),
    epoch=st.sampled_from([1, 7]),
)


@st.composite
def requests(draw: st.DrawFn) -> ScriptedRequest:
    tokens = random.Random(draw(st.integers(0, 1 << 20)))
    prompt = [tokens.randrange(101) for _ in range(draw(st.integers(1, 40) | st.integers(1, 95)))]
    if draw(st.integers(0, 19)) == 0:
        prompt[tokens.randrange(len(prompt))] = draw(st.sampled_from([-1, 101]))
    return ScriptedRequest(
        prompt=tuple(prompt),
        max_tokens=draw(st.integers(1, 40)),
        min_tokens=draw(st.sampled_from([0, 0, 5, 50])),
        stop=draw(st.sampled_from([(), (), (7, 60), (2,)])),
        ignore_eos=draw(st.booleans()),
        priority=draw(st.sampled_from([0, 1, 1, 3])),
        logprobs=draw(st.sampled_from([0, 1, 3])),
        overrides=draw(st.sampled_from(INVALID)) if draw(st.integers(0, 9)) == 0 else {},
    )


@dataclass
class Held:
    """What the model knows of one request in flight."""

    ticket: int
    answer: Answer
    state: SlotState | None = None  # as last read; None: not claimed yet
    tokens: tuple[int, ...] = ()
    cancelled: bool = False
    released: bool = False


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(shape=shapes, first=st.sampled_from([1, 255, 0x7FFFFFFE]))
    def start(self, shape: ScriptedShape, first: int) -> None:
        self.harness = ScriptedHarness(shape)
        self.audit = StepAudit(self.harness)
        self.tickets = dict.fromkeys(PLACES, first - 1)
        self.held: dict[int, Held] = {}
        self.orphans: set[int] = set()
        self.parked = self.closing = self.landing = False

    @rule(place=st.sampled_from(PLACES), request=requests())
    def submit(self, place: int, request: ScriptedRequest) -> None:
        if place in self.held or place // 256 in self.orphans:
            return
        self.tickets[place] += 1
        answer = Answer((), Reason.CLOSED) if self.closing else request.answer(self.harness.shape)
        self.held[place] = Held(self.tickets[place], answer)
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

    @rule(range_=st.integers(0, RANGES - 1))
    def owner_dies(self, range_: int) -> None:
        """Its words pass on; the successor starts only when every slot is {submit, EMPTY}."""
        self.orphans.add(range_)
        for place in PLACES:
            if place // 256 == range_ and self.harness.take_over(place) and place in self.held:
                self.held[place].cancelled = self.held[place].released = True

    @rule(count=st.integers(1, 60), finish=st.booleans())
    def passes(self, count: int, finish: bool) -> None:
        for _ in range(count):
            self.one_pass(finish)

    @precondition(lambda self: self.harness.flight is not None)
    @rule()
    def step_fails(self) -> None:
        """The running step ends with an error: just those it served end, with their tokens."""
        for slot in self.audit.in_flight:
            held = self.held[slot]
            held.answer, held.cancelled = Answer(held.tokens, Reason.ENGINE_ERROR), False
        self.finish_step(error=9)
        self.one_pass(finish=False)

    @rule()
    def park_or_resume(self) -> None:
        self.parked = not self.parked
        self.harness.scheduler.command(Command.PARK if self.parked else Command.RUN)

    @precondition(lambda self: not self.closing)
    @rule(wanted=st.integers(0, 4))
    def close(self, wanted: int) -> None:
        """Everything not claimed by now ends CLOSED, and only that; it is drawn rarely."""
        if wanted != 0:
            return
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
        elif not (held.cancelled and status.reason == Reason.CANCELLED):
            assert Answer(tokens, status.reason) == held.answer

    def teardown(self) -> None:
        if not hasattr(self, "harness"):
            return
        try:
            self.harness.scheduler.command(Command.RUN)
            self.parked = False
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


class TestModel(SchedulerMachine.TestCase):  # type: ignore[misc,valid-type]
    settings = settings(
        max_examples=80, stateful_step_count=40, deadline=None, derandomize=True, database=None
    )


@pytest.mark.slow
class TestModelAtLength(SchedulerMachine.TestCase):  # type: ignore[misc,valid-type]
    settings = settings(max_examples=3000, stateful_step_count=60, deadline=None)
