from __future__ import annotations

import asyncio
import contextlib
import os
from typing import Any

import pytest

from blink_persistent.ring import Reason, SlotState
from blink_persistent.testing.scripted_session import (
    continuation,
    events_of,
    request,
    until_idle,
)
from blink_persistent.testing.scripted_shape import ScriptedShape
from blink_server.backend import FinishReason
from blink_server.errors import EngineFailure, RunnerLost, Unavailable


async def test_cancel_ends_a_request_early(start_ring: Any, open_session: Any) -> None:
    ring = start_ring()
    ring.open_gate.clear()
    session = open_session(ring)
    asked = request([9, 10], max_tokens=90)
    running = await session.submit(asked)
    running.cancel()
    running.cancel()
    ring.open_gate.set()
    events = await events_of(running)
    tokens = [token for event in events for token in event.token_ids]
    assert events[-1].reason is FinishReason.CANCELLED
    assert tokens == continuation(ring, asked)[: len(tokens)]
    await until_idle(session)


async def test_a_late_cancel_does_not_reach_the_next_request(
    start_ring: Any, open_session: Any
) -> None:
    ring = start_ring()
    session = open_session(ring)
    first = await session.submit(request([9, 10], max_tokens=3))
    assert [event.reason async for event in first][-1] is FinishReason.LENGTH
    await until_idle(session)
    asked = request([11, 12], max_tokens=40)
    second = await session.submit(asked)
    first.cancel()
    assert [token async for event in second for token in event.token_ids] == continuation(
        ring, asked
    )


@pytest.mark.parametrize("way", ["break", "task"])
async def test_a_consumer_that_leaves_frees_its_slot(
    start_ring: Any, open_session: Any, way: str
) -> None:
    ring = start_ring()
    ring.stand_still_after(1)
    session = open_session(ring)
    events = aiter(await session.submit(request([9, 10], max_tokens=90)))
    await anext(events)
    if way == "task":
        waiting = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
    else:
        await events.aclose()
    ring.go_on()
    await until_idle(session)
    assert ring.harness.ring.field("generated_tokens") < 90


async def test_a_closing_ring_runs_nothing_more(start_ring: Any, open_session: Any) -> None:
    ring = start_ring(scheduling=False)
    session = open_session(ring)
    late = await session.submit(request([9, 10]))
    ring.harness.scheduler.close()
    ring.start_scheduler()
    events = await events_of(late)
    assert [(event.token_ids, event.reason) for event in events] == [([], FinishReason.CLOSED)]
    with pytest.raises(Unavailable, match="closing"):
        await session.submit(request([9, 10]))


@pytest.mark.parametrize(
    ("reason", "shape"),
    [
        (Reason.KV_EXHAUSTED, ScriptedShape(block_count=4)),
        (Reason.BAD_TOKEN, ScriptedShape(poison_token=10)),
        (Reason.ENGINE_ERROR, ScriptedShape()),
        (Reason.INVALID_RECORD, ScriptedShape()),
    ],
)
async def test_failures_are_raised_by_name(
    start_ring: Any, open_session: Any, reason: Reason, shape: ScriptedShape
) -> None:
    ring = start_ring(shape, scheduling=False)
    session = open_session(ring)
    stream = await session.submit(request([9, 10], max_tokens=40, request_id="cmpl-7-0"))
    if reason is Reason.ENGINE_ERROR:
        ring.step_error = 1
    if reason is Reason.INVALID_RECORD:
        ring.harness.ring.records["prompt_offset"][0] = 2**31
    ring.start_scheduler()
    with pytest.raises(EngineFailure, match=rf"'cmpl-7-0' ended with {reason.name}"):
        async for _ in stream:
            pass
    await until_idle(session)


async def test_close_cancels_and_gives_slots_back(start_ring: Any, open_session: Any) -> None:
    ring = start_ring()
    ring.open_gate.clear()
    session = open_session(ring)
    streams = [await session.submit(request([9, n], max_tokens=90)) for n in range(3, 9)]
    closing = asyncio.ensure_future(session.close())
    await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="closed"):
        await session.submit(request([9, 10]))
    ring.open_gate.set()
    await asyncio.gather(closing, session.close())
    assert session.in_flight == 0
    for stream in streams:
        assert (await events_of(stream))[-1].reason is FinishReason.CANCELLED
    open_session(ring)  # every slot is {submit, EMPTY} again


async def test_close_does_not_wait_for_ever(
    start_ring: Any, open_session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blink_persistent.frontend.session._CLOSE_SECONDS", 0.01)
    session = open_session(start_ring(scheduling=False))
    stream = await session.submit(request([9, 10], request_id="a"))
    await session.close()
    with pytest.raises(EngineFailure, match="'a' failed: the session is closed"):
        await anext(aiter(stream))
    stream.cancel()


async def test_losing_the_other_side(start_ring: Any, open_session: Any) -> None:
    ring = start_ring()
    ring.open_gate.clear()
    session = open_session(ring)
    reasons: list[str] = []
    session.on_closed(reasons.append)
    stream = await session.submit(request([9, 10], request_id="a"))
    session.lose("the runner is gone")
    session.lose("again")
    with pytest.raises(RunnerLost, match="'a' failed: the runner is gone"):
        await anext(aiter(stream))
    with pytest.raises(Unavailable, match="the runner is gone"):
        await session.submit(request([9, 10]))
    session.on_closed(reasons.append)
    assert reasons == ["the runner is gone"] * 2
    assert session.in_flight == 0


async def test_what_was_published_before_the_loss_arrives(
    start_ring: Any, open_session: Any
) -> None:
    ring = start_ring()
    session = open_session(ring)
    asked = request([9, 10], max_tokens=2)
    ended, running = await session.submit(asked), await session.submit(request([9, 11], 90))
    status = ring.harness.status
    while status(0).state is not SlotState.DECODE_COMPLETED or not status(1).generated:
        os.sched_yield()  # and not to the event loop: nobody reads the ring meanwhile
    session.lose("the runner is gone")
    assert [token async for event in ended for token in event.token_ids] == continuation(
        ring, asked
    )
    tokens: list[int] = []
    with contextlib.suppress(EngineFailure):  # unless it has ended by then, too
        async for event in running:
            tokens += event.token_ids
    assert tokens
    assert tokens == continuation(ring, request([9, 11], 90))[: len(tokens)]


async def test_a_slot_that_was_taken_back_ends_its_stream(
    start_ring: Any, open_session: Any
) -> None:
    """Whoever takes a range back while its owner lives leaves no stream without an end."""
    ring = start_ring()
    ring.open_gate.clear()
    session = open_session(ring)
    stream = await session.submit(request([5, 6], max_tokens=40))
    atomic = ring.harness.ring.atomic
    (slot,) = session._flights
    session._range.changes = lambda _high: iter(())  # it is not looked at meanwhile
    atomic.cancel(slot, atomic.submitted(slot))
    atomic.release(slot, atomic.submitted(slot))
    ring.open_gate.set()
    ring.harness.ring_doorbell()
    async with asyncio.timeout(20):
        while ring.harness.ring.in_flight(0, 1):  # noqa: ASYNC110
            await asyncio.sleep(0)
    del session._range.changes
    with pytest.raises(RunnerLost, match="its slot was taken back"):
        await events_of(stream)
    assert session.in_flight == 0
