"""What a session makes of statuses whose parts date from different moments.

The statuses are written by hand, in orders that a scheduler and memory may produce. Each test
shows a reading of the protocol that fails, by giving the session the chance to commit it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from blink_persistent import _native
from blink_persistent.frontend.session import RingSession
from blink_persistent.frontend.stream import RingStream
from blink_persistent.ring import Reason, Ring, SlotState
from blink_persistent.testing.scripted_shape import ScriptedShape
from blink_persistent.testing.threaded_ring import ThreadedRing
from blink_server.backend import FinishReason, GenerateRequest

EPOCH = 7
DECODING, COMPLETED = SlotState.DECODE_PROCESSING, SlotState.DECODE_COMPLETED


class HandWrittenStatus:
    """Writes the parts of slot 0's status, and the tokens before them, as a scheduler does."""

    def __init__(self, ring: Ring) -> None:
        size, fields = _native.layout_table()["SlotStatus"]
        names = [name for name, *_ in fields]
        assert (size, names) == (16, ["ticket", "epoch", "word"])
        raw = np.frombuffer(ring._memory, np.uint8)
        offset = ring.field("status_offset")
        self._ticket_epoch: npt.NDArray[np.uint32] = raw[offset : offset + 8].view(np.uint32)
        self._word: npt.NDArray[np.uint64] = raw[offset + 8 : offset + 16].view(np.uint64)
        self._ring = ring

    def ticket(self, ticket: int, epoch: int = EPOCH) -> None:
        self._ticket_epoch[:] = (ticket, epoch)

    def word(
        self, generated: int, state: SlotState, byte: int, reason: Reason = Reason.NONE
    ) -> None:
        self._word[0] = generated | state << 32 | reason << 40 | byte << 56

    def tokens(self, *tokens: int) -> None:
        offset = int(self._ring.records["output_offset"][0])
        self._ring.outputs[0][offset : offset + len(tokens)] = tokens


@pytest.fixture
def ring(start_ring: Any) -> ThreadedRing:
    started: ThreadedRing = start_ring(ScriptedShape(epoch=EPOCH), scheduling=False)
    return started


@pytest.fixture
def status(ring: ThreadedRing) -> HandWrittenStatus:
    return HandWrittenStatus(ring.harness.ring)


@pytest.fixture(autouse=True)
def no_wait_at_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody obeys the cancels of a closing session here."""
    monkeypatch.setattr("blink_persistent.frontend.session._CLOSE_SECONDS", 0.0)


@pytest.fixture
async def session(ring: ThreadedRing, open_session: Any) -> RingSession:
    opened: RingSession = open_session(ring)
    return opened


@pytest.fixture
def look(ring: ThreadedRing) -> Callable[[], Any]:
    """Makes the session look at the statuses; returns when it has."""
    bell = ring.harness.bells[0]

    async def look() -> None:
        os.eventfd_write(bell, 1)
        while True:
            await asyncio.sleep(0)
            try:
                os.eventfd_read(bell)
            except BlockingIOError:
                return
            os.eventfd_write(bell, 1)

    return look


async def submit(session: RingSession) -> RingStream:
    return await session.submit(GenerateRequest(prompt_ids=[9, 10], max_tokens=20))


async def finish_one(session: RingSession, status: HandWrittenStatus, look: Any) -> None:
    """Ticket 1 on slot 0, from claim to EMPTY."""
    stream = await submit(session)
    status.tokens(50, 51)
    status.ticket(1)
    status.word(2, COMPLETED, 1, Reason.MAX_TOKENS)
    await look()
    assert [token async for event in stream for token in event.token_ids] == [50, 51]
    status.word(0, SlotState.EMPTY, 1)
    await look()
    assert session.in_flight == 0


async def drain(stream: RingStream) -> tuple[list[int], FinishReason | None]:
    async with asyncio.timeout(20):
        events = [event async for event in stream]
    return [token for event in events for token in event.token_ids], events[-1].reason


async def test_an_old_word_under_the_new_ticket_is_not_believed(
    session: RingSession, status: HandWrittenStatus, look: Any
) -> None:
    await finish_one(session, status, look)
    stream = await submit(session)
    status.tokens(60, 61)
    status.ticket(2)
    status.word(2, COMPLETED, 1, Reason.MAX_TOKENS)  # as two bulk reads in flight may show it
    await look()
    status.word(0, SlotState.EMPTY, 1)
    await look()
    assert session.in_flight == 1
    status.tokens(70)
    status.word(1, COMPLETED, 2, Reason.STOP_TOKEN)
    await look()
    assert await drain(stream) == ([70], FinishReason.STOP)


async def test_a_new_word_under_the_old_ticket_is_not_believed(
    session: RingSession, status: HandWrittenStatus, look: Any
) -> None:
    await finish_one(session, status, look)
    stream = await submit(session)
    status.tokens(60)
    status.word(1, DECODING, 2)
    await look()
    status.tokens(70, 71)
    status.ticket(2)
    status.word(2, COMPLETED, 2, Reason.STOP_TOKEN)
    await look()
    assert await drain(stream) == ([70, 71], FinishReason.STOP)


async def test_another_epoch_is_not_believed(
    session: RingSession, status: HandWrittenStatus, look: Any
) -> None:
    stream = await submit(session)
    status.tokens(60)
    status.ticket(1, epoch=EPOCH - 1)
    status.word(1, COMPLETED, 1, Reason.STOP_TOKEN)
    await look()
    status.tokens(70)
    status.ticket(1)
    await look()
    assert await drain(stream) == ([70], FinishReason.STOP)


async def test_a_word_refused_once_is_believed_when_its_ticket_arrives(
    session: RingSession, status: HandWrittenStatus, look: Any
) -> None:
    stream = await submit(session)
    status.tokens(60, 61)
    status.word(2, DECODING, 1)
    await look()
    status.ticket(1)
    await look()
    async with asyncio.timeout(20):
        assert (await anext(aiter(stream))).token_ids == [60, 61]


async def test_a_slot_is_not_used_again_before_its_own_empty(
    ring: ThreadedRing, session: RingSession, status: HandWrittenStatus, look: Any
) -> None:
    first = await submit(session)
    status.ticket(1)
    status.word(0, COMPLETED, 1, Reason.CANCELLED)
    await look()
    assert await drain(first) == ([], FinishReason.CANCELLED)
    record = ring.harness.ring.records[0].copy()
    await submit(session)
    atomic = ring.harness.ring.atomic
    assert (atomic.submitted(0), atomic.submitted(1)) == (1, 1)
    assert ring.harness.ring.records[0] == record
    status.word(0, SlotState.EMPTY, 0)  # not its own
    await look()
    assert session.in_flight == 2
    status.word(0, SlotState.EMPTY, 1)
    await look()
    assert session.in_flight == 1
    await submit(session)
    assert atomic.submitted(0) == 2


async def test_tokens_are_handed_on_once_whatever_states_lie_between(
    session: RingSession, status: HandWrittenStatus, look: Any
) -> None:
    stream = await submit(session)
    status.ticket(1)
    status.tokens(30, 31, 32, 33)
    for generated, state in (
        (0, SlotState.PREFILL_PENDING),
        (0, SlotState.PREFILL_PROCESSING),
        (1, DECODING),
        (1, SlotState.DECODE_PAUSED),
        (3, DECODING),
        (3, DECODING),
    ):
        status.word(generated, state, 1)
        await look()
    status.word(4, COMPLETED, 1, Reason.MAX_TOKENS)
    await look()
    assert await drain(stream) == ([30, 31, 32, 33], FinishReason.LENGTH)
