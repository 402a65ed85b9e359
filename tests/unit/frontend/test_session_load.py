from __future__ import annotations

import os
from typing import Any

import pytest

from blink_persistent import _native
from blink_persistent.ring import SlotState
from blink_persistent.testing.scripted_session import (
    continuation,
    events_of,
    generate,
    request,
    until_idle,
)
from blink_persistent.testing.scripted_shape import ScriptedShape
from blink_server.backend import FinishReason, SamplingParams
from blink_server.errors import InvalidRequest, Overloaded


class TightShape(ScriptedShape):
    """Arenas that hold little more than two requests at full length."""

    def ring(self) -> _native.RingShape:
        return _native.RingShape(self.ranges, self.slots_per_range, 1024, 1024, 1024)


async def test_a_full_range_refuses_and_recovers(start_ring: Any, open_session: Any) -> None:
    ring = start_ring(scheduling=False)
    session = open_session(ring)
    asked = request([9, 10], max_tokens=2)
    streams = [await session.submit(asked) for _ in range(256)]
    with pytest.raises(Overloaded, match="slot"):
        await session.submit(asked)
    assert session.in_flight == 256
    ring.start_scheduler()
    for stream in streams:
        assert [token async for event in stream for token in event.token_ids] == continuation(
            ring, asked
        )
    tokens, _ = await generate(session, asked)
    assert tokens == continuation(ring, asked)


async def test_a_full_arena_refuses_and_recovers(start_ring: Any, open_session: Any) -> None:
    ring = start_ring(TightShape(), scheduling=False)
    session = open_session(ring)
    asked = request([9, 10], max_tokens=90, sampling=SamplingParams(logprobs=2))
    streams = [await session.submit(asked) for _ in range(1024 // (90 * 6))]
    with pytest.raises(Overloaded, match="max_tokens"):
        await session.submit(asked)
    with pytest.raises(InvalidRequest, match="max_tokens"):
        await session.submit(request([9], max_tokens=90, sampling=SamplingParams(logprobs=20)))
    ring.start_scheduler()
    for stream in streams:
        assert (await events_of(stream))[-1].reason is FinishReason.LENGTH
    await until_idle(session)
    assert (await generate(session, asked))[0] == continuation(ring, asked)


async def test_the_queue_has_an_end(start_ring: Any, open_session: Any) -> None:
    ring = start_ring(ScriptedShape(ranges=2), scheduling=False)
    session = open_session(ring, max_queue=5)
    asked = request([9, 10], max_tokens=2)
    streams = [await session.submit(asked) for _ in range(3)]  # half of 5, rounded up
    with pytest.raises(Overloaded, match="queue is full: 3"):
        await session.submit(asked)
    ring.start_scheduler()
    for stream in streams:
        assert (await events_of(stream))[-1].reason is FinishReason.LENGTH
    assert (await generate(session, asked))[1].reason is FinishReason.LENGTH


async def test_a_request_that_has_its_row_waits_no_more(start_ring: Any, open_session: Any) -> None:
    ring = start_ring()
    ring.open_gate.clear()
    session = open_session(ring, max_queue=1)
    asked = request([9, 10], max_tokens=2)
    streams = [await session.submit(asked)]
    while ring.harness.status(0).state is not SlotState.PREFILL_PROCESSING:
        os.sched_yield()  # no bell is rung for this
    streams.append(await session.submit(asked))
    with pytest.raises(Overloaded, match="queue is full: 1"):
        await session.submit(asked)
    ring.open_gate.set()
    for stream in streams:
        assert (await events_of(stream))[-1].reason is FinishReason.LENGTH


async def test_the_queue_s_end_may_move_while_it_serves(start_ring: Any, open_session: Any) -> None:
    ring = start_ring(ScriptedShape(ranges=2), scheduling=False)
    session = open_session(ring, max_queue=2)
    asked = request([9, 10], max_tokens=2)
    await session.submit(asked)
    with pytest.raises(Overloaded, match="queue is full: 1"):
        await session.submit(asked)
    session.configure({"limits": {"max_queue": 4, "slots": 512}})
    await session.submit(asked)
    with pytest.raises(Overloaded, match="queue is full: 2"):
        await session.submit(asked)


async def test_an_agent_s_worker_has_its_range_s_share_of_the_version_s_queue(
    start_ring: Any, open_session: Any
) -> None:
    ring = start_ring(ScriptedShape(ranges=1), scheduling=False)  # of four
    session = open_session(ring, max_queue=2)
    session.configure({"limits": {"max_queue": 8, "slots": 1024}})
    asked = request([9, 10], max_tokens=2)
    for _ in range(2):
        await session.submit(asked)
    with pytest.raises(Overloaded, match="queue is full: 2"):
        await session.submit(asked)
