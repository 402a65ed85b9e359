"""What single passes do: order, window, park, preemption, exhaustion, notice, log-probabilities."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest

from blink_persistent import _native
from blink_persistent.ring import Reason, SlotState
from blink_persistent.testing.observed import Command, Outcome, TraceKind
from blink_persistent.testing.scripted_harness import ScriptedHarness
from blink_persistent.testing.scripted_request import Answer, ScriptedRequest
from blink_persistent.testing.scripted_shape import ScriptedShape

SHORT = ScriptedRequest((5, 6, 7), max_tokens=2)


@pytest.fixture
def harness() -> Iterator[ScriptedHarness]:
    with ScriptedHarness(ScriptedShape(ranges=2)) as harness:
        yield harness


def claimed(harness: ScriptedHarness) -> list[int]:
    return [event.a for event in harness.trace() if event.kind == TraceKind.CLAIM]


def test_requests_live_through_the_states_in_order(harness: ScriptedHarness) -> None:
    harness.submit(0, 1, SHORT)
    states = [harness.status(0).state]
    while states[-1] != SlotState.DECODE_COMPLETED:
        harness.run_pass()
        states.append(harness.status(0).state)
        harness.finish_step() if harness.flight else None
    assert states == [
        SlotState.EMPTY,
        SlotState.PREFILL_PROCESSING,
        SlotState.DECODE_PROCESSING,
        SlotState.DECODE_COMPLETED,
    ]
    claim, prefill, first, finished = harness.ring.timings[0].tolist()
    assert 0 < claim <= prefill <= first <= finished


def test_decode_is_delayed_by_one_prefill_at_most(harness: ScriptedHarness) -> None:
    """With prompts waiting all the time, every second launch is a decode step."""
    for slot in range(12):
        harness.submit(slot, 1, ScriptedRequest(tuple(range(3, 33)), max_tokens=20))
    harness.settle()
    phases = [
        harness.shape.grid.keys[event.a].phase
        for event in harness.trace()
        if event.kind == TraceKind.LAUNCH
    ]
    assert (1, 1) not in set(pairwise(phases))


def test_lower_priorities_wait(harness: ScriptedHarness) -> None:
    for slot, priority in enumerate((3, 0, 2, 1, 0, 3)):
        harness.submit(slot, 1, ScriptedRequest((9,) * 30, max_tokens=4, priority=priority))
    harness.settle()
    admitted = [event.a for event in harness.trace() if event.kind == TraceKind.ADMIT]
    assert admitted == [1, 4, 3, 2, 0, 5]


def test_no_range_is_always_claimed_first(harness: ScriptedHarness) -> None:
    firsts = set()
    for ticket in range(1, 5):
        for slot in (0, 256):
            harness.submit(slot, ticket, SHORT)
        harness.settle()
        firsts.add(claimed(harness)[0])
        for slot in (0, 256):
            harness.ring.atomic.release(slot, ticket)
        harness.settle()
        harness.run_pass()
    assert firsts == {0, 256}


def test_the_window_is_renewed_after_120_launches(harness: ScriptedHarness) -> None:
    for slot in range(4):
        harness.submit(slot, 1, ScriptedRequest((5,), max_tokens=90))
    harness.settle()
    for slot in range(4, 8):
        harness.submit(slot, 1, ScriptedRequest((5,), max_tokens=90))
    harness.settle()
    kinds = [event.kind for event in harness.trace()]
    window = longest = 0
    for kind in kinds:
        window = 0 if kind == TraceKind.RELAUNCH else window + (kind == TraceKind.LAUNCH)
        longest = max(longest, window)
    assert longest in (_native.LAUNCH_WINDOW, _native.LAUNCH_WINDOW - 1)
    assert harness.counters("tail_launches") == [kinds.count(TraceKind.RELAUNCH)]
    assert harness.counters("window_launches") == [window]


def test_park_ends_the_running_step_and_starts_no_other(harness: ScriptedHarness) -> None:
    harness.submit(0, 1, ScriptedRequest((5, 6, 7), max_tokens=5))
    harness.run_pass()
    harness.scheduler.command(Command.PARK)
    assert harness.run_pass() == Outcome.BUSY
    harness.finish_step()
    assert [harness.run_pass() for _ in range(3)] == [Outcome.PARK] * 3
    harness.submit(1, 1, SHORT)  # claimed while parked, not admitted
    harness.run_pass()
    assert (harness.flight, harness.status(1).state) == (None, SlotState.PREFILL_PENDING)
    harness.scheduler.command(Command.RUN)
    harness.settle()
    assert harness.output(0, 1) == ScriptedRequest((5, 6, 7), max_tokens=5).answer(harness.shape)[0]
    assert harness.output(1, 1) == SHORT.answer(harness.shape).tokens


def test_a_release_written_early_needs_no_second_bell(harness: ScriptedHarness) -> None:
    """A pass that completed something is not idle: its release may lie there already."""
    harness.submit(0, 1, ScriptedRequest((5,), overrides={"max_tokens": 0}))
    harness.ring.atomic.release(0, 1)
    assert harness.run_pass() == Outcome.PROGRESS
    assert harness.accepted(0, 1).reason == Reason.INVALID_RECORD  # type: ignore[union-attr]
    assert harness.run_pass() == Outcome.IDLE
    assert harness.is_empty(0, 1)


def test_every_slot_at_once(harness: ScriptedHarness) -> None:
    """More requests than slots and far more than rows; none is lost, each gets its own answer."""
    requests = [
        ScriptedRequest((3 + slot % 90, slot // 90), max_tokens=3 + slot % 5)
        for slot in range(harness.ring.slot_count)
    ]
    for ticket in (1, 2):
        for slot, request in enumerate(requests):
            harness.submit(slot, ticket, request)
        harness.settle()
        for slot, request in enumerate(requests):
            assert harness.output(slot, ticket) == request.answer(harness.shape).tokens
            harness.ring.atomic.release(slot, ticket)
        harness.settle()
        assert all(harness.is_empty(slot, ticket) for slot in range(harness.ring.slot_count))
    assert harness.counters("claims", "completions") == [1024, 1024]


@pytest.mark.parametrize(("priorities", "youngest"), [((0, 0, 0, 0), 2), ((2, 1, 0, 3), 0)])
def test_preempted_requests_answer_as_if_undisturbed(
    priorities: tuple[int, ...], youngest: int
) -> None:
    """Three rows, four requests: who was preempted goes on before who has never run."""
    shape = ScriptedShape(max_rows=3, block_size=2, block_count=20)
    requests = [
        ScriptedRequest((5 + i, 6, 7, 8), max_tokens=25, priority=priority)
        for i, priority in enumerate(priorities)
    ]
    with ScriptedHarness(shape) as harness:
        for slot, request in enumerate(requests):
            harness.submit(slot, 1, request)
        harness.settle()
        events = harness.trace()
        preempted = [event.a for event in events if event.kind == TraceKind.PREEMPT]
        ended = [event.a for event in events if event.kind == TraceKind.END]
        assert preempted[0] == youngest
        assert ended == sorted(range(4), key=lambda slot: (priorities[slot], slot))
        for slot, request in enumerate(requests):
            assert harness.output(slot, 1) == request.answer(shape).tokens
        assert harness.counters("preemptions") == [len(preempted)]


def test_an_admission_leaves_a_block_to_each_row_that_decodes() -> None:
    """Else the newcomer would be preempted at the next step, its prefill in vain."""
    shape = ScriptedShape(block_size=4, block_count=6)
    with ScriptedHarness(shape) as harness:
        for slot, prompt in enumerate(((5,) * 8, (6,) * 12)):  # 2 blocks, then 3 of 5
            harness.submit(slot, 1, ScriptedRequest(prompt, max_tokens=4))
        harness.settle()
        assert harness.counters("preemptions", "prefill_launches") == [0, 2]


def test_a_cancel_reaches_a_waiting_request_at_once() -> None:
    with ScriptedHarness(ScriptedShape(max_rows=1)) as harness:
        for slot in (0, 1, 2):
            harness.submit(slot, 1, ScriptedRequest((5, 6, 7), max_tokens=4))
        harness.run_pass()
        harness.ring.atomic.cancel(1, 1)
        harness.run_pass()
        status = harness.accepted(1, 1)
        assert status is not None
        assert (status.state, status.reason) == (SlotState.DECODE_COMPLETED, Reason.CANCELLED)
        harness.settle()
        assert [event.a for event in harness.trace() if event.kind == TraceKind.ADMIT] == [0, 2]


def test_rows_that_cannot_move_stay(harness: ScriptedHarness) -> None:
    shape = ScriptedShape(rows_movable=False, max_rows=3)
    with ScriptedHarness(shape) as harness:
        for slot, tokens in enumerate((4, 20, 12)):
            harness.submit(slot, 1, ScriptedRequest((5, slot), max_tokens=tokens))
        harness.settle()
        harness.submit(3, 1, SHORT)
        harness.settle()
        events = harness.trace()
        assert TraceKind.MOVE not in {event.kind for event in events}
        assert [e.b for e in events if e.kind == TraceKind.ADMIT] == [0, 1, 2, 0]
        decoded = [(e.b, e.c) for e in events if e.kind == TraceKind.LAUNCH]
        assert (3, 2) in decoded  # a hole at row 0 takes part in the graph, not in the step


def test_an_owner_is_told_once_a_pass(harness: ScriptedHarness) -> None:
    for slot in range(4):
        harness.submit(slot, 1, ScriptedRequest((5, 6, 7), max_tokens=9))
    for _ in range(4):  # two prompts, a decode step, the other two, a decode step of all four
        harness.run_pass()
        harness.finish_step()
    os.eventfd_read(harness.bells[0])
    harness.run_pass()  # four tokens for four slots
    assert os.eventfd_read(harness.bells[0]) == 1
    with pytest.raises(BlockingIOError):
        os.eventfd_read(harness.bells[1])


def test_log_probabilities_lie_beside_their_tokens(harness: ScriptedHarness) -> None:
    request = ScriptedRequest((5, 6, 7), max_tokens=6, logprobs=3)  # chosen and the two best
    harness.submit(300, 1, request)
    harness.settle()
    tokens = np.array(harness.output(300, 1))
    entries = harness.logprobs(300, len(tokens))
    assert entries.shape == (6, 5)
    assert entries[:, 0].view(np.float32).tolist() == (-tokens).tolist()
    assert entries[:, 1:3].tolist() == [[t, (t + 1) % 101] for t in tokens.tolist()]
    assert entries[:, 3:].copy().view(np.float32).tolist() == [[-t, -t - 1] for t in tokens]


def test_the_context_limit_ends_a_request(harness: ScriptedHarness) -> None:
    request = ScriptedRequest(tuple(range(3, 93)), max_tokens=96)
    harness.submit(0, 1, request)
    harness.settle()
    status = harness.accepted(0, 1)
    assert status is not None
    assert (status.generated, status.reason) == (6, Reason.CONTEXT_LIMIT)
    assert Answer(harness.output(0, 1), status.reason) == request.answer(harness.shape)


def test_the_header_counts_each_graph_and_the_gaps_without_a_rest(
    harness: ScriptedHarness,
) -> None:
    harness.submit(0, 1, SHORT)
    harness.settle()
    harness.submit(1, 1, SHORT)
    harness.settle()
    launched = [event.a for event in harness.trace() if event.kind == TraceKind.LAUNCH]
    shown = harness.ring.header["graph_launches"][0]
    expected = np.bincount(launched, minlength=_native.SHOWN_GRAPHS)
    assert shown.tolist() == expected.tolist()
    # Each request is a prefill and a decode step; between the two requests there was a rest.
    assert (len(launched), harness.ring.field("gaps")) == (4, 2)
    assert 0 < harness.ring.field("gap_ns") < harness.ring.timings[1]["finished_ns"]
