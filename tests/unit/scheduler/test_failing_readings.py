"""Readings of the ring protocol that fail, each as its interleaving: see docs/ring.md.

Every test drives the exact order of events that breaks the wrong reading, shows what that reading
would have concluded, and that the protocol as it is survives.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from blink_persistent.ring import Reason, SlotState, unpack_status
from blink_persistent.testing.observed import Status
from blink_persistent.testing.scripted_harness import ScriptedHarness
from blink_persistent.testing.scripted_request import Answer, ScriptedRequest
from blink_persistent.testing.scripted_shape import ScriptedShape

FIRST = ScriptedRequest(prompt=(5, 6, 7), max_tokens=6)
SECOND = ScriptedRequest(prompt=(40, 41, 42, 43, 44), max_tokens=3)
SLOT = 10


@pytest.fixture
def harness() -> Iterator[ScriptedHarness]:
    with ScriptedHarness(ScriptedShape()) as harness:
        yield harness


def torn(ticket_from: tuple[int, int, int], word_from: tuple[int, int, int]) -> Status:
    """A bulk read: each 8-byte word of the status is of a moment of its own."""
    generated, state, reason, byte = unpack_status(word_from[2])
    return Status(ticket_from[0], ticket_from[1], generated, state, reason, byte)


def answer(harness: ScriptedHarness, ticket: int) -> Answer:
    status = harness.accepted(SLOT, ticket)
    assert status is not None
    return Answer(harness.output(SLOT, ticket), status.reason)


def serve(harness: ScriptedHarness, ticket: int, request: ScriptedRequest) -> Answer:
    harness.submit(SLOT, ticket, request)
    harness.settle()
    result = answer(harness, ticket)
    harness.ring.atomic.release(SLOT, ticket)
    harness.settle()
    assert harness.is_empty(SLOT, ticket)
    return result


def take_over(harness: ScriptedHarness) -> int:
    """The provisioner's part to its end; the ticket that the successor continues from."""
    ticket = harness.take_over(SLOT)
    harness.settle()
    assert harness.is_empty(SLOT, ticket)
    return ticket


def test_reading_1_status_by_ticket_alone_ends_a_take_over_too_soon(
    harness: ScriptedHarness,
) -> None:
    before = harness.ring.atomic.status(SLOT)
    harness.submit(SLOT, 1, FIRST)  # its owner dies here
    assert harness.take_over(SLOT) == 1
    harness.run_pass()
    seen = torn(ticket_from=harness.ring.atomic.status(SLOT), word_from=before)
    assert (seen.ticket, seen.state) == (1, SlotState.EMPTY)  # by ticket alone: hand over now
    assert harness.status(SLOT).state not in (SlotState.EMPTY, SlotState.DECODE_COMPLETED)
    assert not seen.belongs_to(1, harness.shape.epoch)
    assert take_over(harness) == 1


def test_reading_1_status_by_ticket_alone_gives_the_successor_an_old_answer(
    harness: ScriptedHarness,
) -> None:
    harness.submit(SLOT, 1, FIRST)
    harness.settle()
    completed = harness.ring.atomic.status(SLOT)
    harness.ring.atomic.release(SLOT, 1)
    harness.settle()
    harness.submit(SLOT, 2, SECOND)
    harness.run_pass()
    seen = torn(ticket_from=harness.ring.atomic.status(SLOT), word_from=completed)
    assert (seen.ticket, seen.state, seen.generated) == (2, SlotState.DECODE_COMPLETED, 6)
    assert not seen.belongs_to(2, harness.shape.epoch)
    harness.settle()
    assert answer(harness, 2) == SECOND.answer(harness.shape)


def test_reading_1_two_reads_in_flight_give_a_token_of_the_third_request_to_the_second(
    harness: ScriptedHarness,
) -> None:
    serve(harness, 1, FIRST)
    harness.submit(SLOT, 2, SECOND)
    harness.settle()
    second = harness.ring.atomic.status(SLOT)
    harness.ring.atomic.release(SLOT, 2)
    harness.settle()
    harness.submit(SLOT, 3, FIRST)
    harness.settle()
    seen = torn(ticket_from=second, word_from=harness.ring.atomic.status(SLOT))
    assert (seen.ticket, seen.generated) == (2, len(FIRST.answer(harness.shape).tokens))
    assert not seen.belongs_to(2, harness.shape.epoch)


def test_reading_1_empty_has_generated_nothing(harness: ScriptedHarness) -> None:
    """Else {2, EMPTY of 1} would offer the first request's tokens to the second."""
    serve(harness, 1, FIRST)
    assert harness.status(SLOT) == Status(1, 1, 0, SlotState.EMPTY, Reason.NONE, 1)


def test_reading_2_a_successor_that_does_not_wait_tears_the_record(
    harness: ScriptedHarness,
) -> None:
    harness.submit(SLOT, 1, FIRST)  # its owner dies here
    assert harness.status(SLOT).state == SlotState.EMPTY  # of any ticket: B would start now
    assert not harness.is_empty(SLOT, 1)
    harness.ring.records["max_tokens"][SLOT] = SECOND.max_tokens  # half of B's record
    harness.settle()
    torn_request = ScriptedRequest(FIRST.prompt, max_tokens=SECOND.max_tokens)
    assert answer(harness, 1) == torn_request.answer(harness.shape)  # nobody asked for this


def test_reading_2_a_successor_that_waits_finds_its_record_whole(harness: ScriptedHarness) -> None:
    harness.submit(SLOT, 1, FIRST)
    assert take_over(harness) == 1
    assert serve(harness, 2, SECOND) == SECOND.answer(harness.shape)


def test_reading_3_tickets_from_the_status_repeat_a_pending_submit(
    harness: ScriptedHarness,
) -> None:
    harness.submit(SLOT, 1, FIRST)
    ticket = harness.take_over(SLOT)
    from_status = harness.status(SLOT).ticket + 1
    assert from_status == ticket == 1  # the dead owner's, with its cancel in force
    harness.settle()
    assert serve(harness, ticket + 1, SECOND) == SECOND.answer(harness.shape)


def test_reading_3_tickets_from_1_are_never_claimed(harness: ScriptedHarness) -> None:
    for ticket in (1, 2):
        serve(harness, ticket, FIRST)
    ticket = take_over(harness)
    assert ticket == 2
    harness.submit(SLOT, 1, SECOND)
    harness.settle()
    assert harness.accepted(SLOT, 1) is None  # "newer" never claims it
    assert serve(harness, ticket + 1, SECOND) == SECOND.answer(harness.shape)


def test_reading_4_an_epoch_does_not_fence_words_that_land_late(harness: ScriptedHarness) -> None:
    assert harness.take_over(SLOT) == 0  # too early: nothing was written yet
    harness.submit(SLOT, 1, FIRST)  # the dead owner's last write lands
    harness.settle()
    assert answer(harness, 1) == FIRST.answer(harness.shape)  # claimed: no epoch stopped it
    assert take_over(harness) == 1  # after the owner was reaped, nothing can land any more
    assert serve(harness, 2, SECOND) == SECOND.answer(harness.shape)


def test_reading_5_without_release_the_slot_stays_completed(harness: ScriptedHarness) -> None:
    harness.submit(SLOT, 1, FIRST)
    harness.ring.atomic.cancel(SLOT, 1)
    for _ in range(10):
        harness.settle()
    assert harness.status(SLOT).state == SlotState.DECODE_COMPLETED
    harness.ring.atomic.release(SLOT, 1)
    harness.settle()
    assert harness.is_empty(SLOT, 1)


@pytest.mark.parametrize("released", [False, True])
def test_reading_7_words_sent_again_run_nothing_twice(
    harness: ScriptedHarness, released: bool
) -> None:
    harness.submit(SLOT, 1, FIRST)
    harness.settle()
    if released:
        harness.ring.atomic.release(SLOT, 1)
        harness.settle()
    before = harness.ring.atomic.status(SLOT)
    harness.submit(SLOT, 1, FIRST)  # the record and every word, after a lost connection
    harness.ring.atomic.cancel(SLOT, 0)
    harness.ring.atomic.release(SLOT, int(released))
    harness.settle()
    assert harness.ring.atomic.status(SLOT) == before
    assert harness.counters("claims", "completions") == [1, 1]


def test_reading_8_a_status_of_the_ring_before_is_not_taken_for_the_new_one() -> None:
    with (
        ScriptedHarness(ScriptedShape(epoch=1)) as old,
        ScriptedHarness(ScriptedShape(epoch=2)) as new,
    ):
        old.submit(SLOT, 1, FIRST)
        old.settle()
        new.submit(SLOT, 1, SECOND)
        kept = old.status(SLOT)
        assert (kept.ticket, kept.ticket_byte, kept.generated) == (1, 1, 6)
        assert not kept.belongs_to(1, new.shape.epoch)
        new.settle()
        assert new.output(SLOT, 1) == SECOND.answer(new.shape).tokens


def test_reading_9_a_retry_on_accepting_0_would_run_twice(harness: ScriptedHarness) -> None:
    harness.submit(SLOT, 1, FIRST)
    harness.run_pass()
    harness.scheduler.close()
    harness.finish_step()
    harness.settle()
    assert not harness.ring.atomic.accepting()
    assert answer(harness, 1) == FIRST.answer(harness.shape)  # claimed before: it has run


def test_reading_9_a_late_submit_is_answered_not_ignored(harness: ScriptedHarness) -> None:
    harness.scheduler.close()
    harness.submit(SLOT, 1, FIRST)
    harness.settle()
    assert answer(harness, 1) == Answer((), Reason.CLOSED)  # the only reason that permits a retry
    harness.ring.atomic.release(SLOT, 1)
    harness.settle()
    assert harness.is_empty(SLOT, 1)


def test_reading_9_all_empty_is_not_drained(harness: ScriptedHarness) -> None:
    harness.scheduler.close()
    harness.run_pass()
    harness.submit(SLOT, 1, FIRST)
    states = {harness.status(slot).state for slot in range(harness.ring.slot_count)}
    assert states == {SlotState.EMPTY}  # yet a request is on its way
    assert not harness.is_empty(SLOT, harness.ring.atomic.submitted(SLOT))
    harness.settle()
    assert answer(harness, 1).reason == Reason.CLOSED


@pytest.mark.parametrize("alone", [True, False])
def test_reading_10_a_request_larger_than_the_pool_ends(alone: bool) -> None:
    shape = ScriptedShape(block_size=4, block_count=6)
    large = ScriptedRequest(prompt=tuple(range(3, 15)), max_tokens=60)
    assert large.answer(shape).reason == Reason.KV_EXHAUSTED
    with ScriptedHarness(shape) as harness:
        if not alone:
            harness.submit(0, 1, FIRST)
        harness.submit(SLOT, 1, large)
        harness.settle(limit=1000)
        assert answer(harness, 1) == large.answer(shape)
        assert alone or harness.output(0, 1) == FIRST.answer(shape).tokens


def test_reading_10_a_prompt_larger_than_the_pool_never_starts() -> None:
    shape = ScriptedShape(block_size=4, block_count=6)
    with ScriptedHarness(shape) as harness:
        harness.submit(SLOT, 1, ScriptedRequest(prompt=tuple(range(3, 24))))
        harness.settle(limit=10)
        assert answer(harness, 1) == Answer((), Reason.KV_EXHAUSTED)
        assert harness.counters("prefill_launches", "steps") == [0, 0]
