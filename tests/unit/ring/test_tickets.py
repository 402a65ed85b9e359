"""Tickets are serial numbers that skip 0; the status word carries their low byte."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from blink_persistent import _native
from blink_persistent.ring import Reason, SlotState, unpack_status
from blink_persistent.testing.observed import Status
from blink_persistent.testing.scripted_harness import ScriptedHarness
from blink_persistent.testing.scripted_request import ScriptedRequest
from blink_persistent.testing.scripted_shape import ScriptedShape

REQUEST = ScriptedRequest(prompt=(5, 6, 7), max_tokens=3)
LAST = 0xFFFFFFFF


@pytest.fixture
def harness() -> Iterator[ScriptedHarness]:
    with ScriptedHarness(ScriptedShape(epoch=3)) as harness:
        yield harness


def serve(harness: ScriptedHarness, ticket: int) -> bool:
    """Submits and releases under this ticket; was it served?"""
    harness.submit(0, ticket, REQUEST)
    harness.settle()
    served = harness.output(0, ticket) == REQUEST.answer(harness.shape).tokens
    harness.ring.atomic.release(0, ticket)
    harness.settle()
    return served and harness.is_empty(0, ticket)


def test_the_next_ticket_skips_0() -> None:
    assert [_native.ticket_after(t) for t in (0, 1, 254, 255, LAST - 1, LAST)] == [
        1,
        2,
        255,
        256,
        LAST,
        1,
    ]


def test_tickets_go_on_through_the_wrap(harness: ScriptedHarness) -> None:
    ticket = 0x7FFFFFFF  # half the circle is newer than 0, half of it newer than that
    assert serve(harness, ticket)
    ticket = LAST - 1
    for expected in (LAST - 1, LAST, 1, 2):
        assert ticket == expected
        assert serve(harness, ticket)
        ticket = _native.ticket_after(ticket)


@pytest.mark.parametrize("stale", [0, 7, 6, 1, 7 + (1 << 31), LAST])
def test_what_is_not_newer_is_not_claimed(harness: ScriptedHarness, stale: int) -> None:
    assert serve(harness, 7)
    before = harness.ring.atomic.status(0)
    harness.submit(1, 1, REQUEST)  # so that a scan looks closely
    assert not serve(harness, stale)
    assert harness.ring.atomic.status(0) == before
    assert harness.counters("claims", "completions") == [2, 2]
    assert serve(harness, 8)


def test_a_reader_accepts_only_his_ticket_epoch_and_byte(harness: ScriptedHarness) -> None:
    harness.submit(0, 0x1234, REQUEST)
    harness.settle()
    ticket, epoch, word = harness.ring.atomic.status(0)
    assert (ticket, epoch) == (0x1234, 3)
    assert unpack_status(word) == (3, SlotState.DECODE_COMPLETED, Reason.MAX_TOKENS, 0x34)
    status = harness.status(0)
    assert status.belongs_to(0x1234, 3)
    assert not status.belongs_to(0x1234, 2)
    assert not status.belongs_to(0x1134, 3)
    assert not status._replace(ticket_byte=0x33).belongs_to(0x1234, 3)


def test_the_status_word_takes_apart_into_its_fields() -> None:
    word = 0xFFFFFFFE | SlotState.DECODE_PAUSED << 32 | Reason.KV_EXHAUSTED << 40 | 0xAB << 56
    assert unpack_status(word) == (0xFFFFFFFE, SlotState.DECODE_PAUSED, Reason.KV_EXHAUSTED, 0xAB)
    assert unpack_status(0) == (0, SlotState.EMPTY, Reason.NONE, 0)
    with pytest.raises(ValueError, match="9 is not a valid SlotState"):
        unpack_status(9 << 32)


def test_bulk_reads_agree_with_single_ones(harness: ScriptedHarness) -> None:
    for slot in (0, 3, 255):
        harness.submit(slot, 1 + slot, REQUEST)
    harness.settle()
    bulk = np.empty((256, 2), np.uint64)
    harness.ring.atomic.read_statuses(0, bulk)
    for slot in range(256):
        ticket, epoch, word = harness.ring.atomic.status(slot)
        assert bulk[slot].tolist() == [ticket | epoch << 32, word]
    tail = np.empty((1, 2), np.uint64)
    harness.ring.atomic.read_statuses(255, tail)
    assert tail.tolist() == bulk[255:].tolist()
    assert Status(1, 3, *unpack_status(int(bulk[0, 1]))).belongs_to(1, 3)
