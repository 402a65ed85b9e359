from __future__ import annotations

import asyncio

import pytest

from blink_persistent.frontend.stream import RingStream
from blink_server.backend import FinishReason, RequestTiming, TokenEvent, TokenLogprob
from blink_server.errors import EngineFailure

TIMING = RequestTiming(1, 2, 3, 4)


@pytest.fixture
def cancels() -> list[str]:
    return []


@pytest.fixture
def stream(cancels: list[str]) -> RingStream:
    return RingStream(lambda: cancels.append("cancelled"))


async def test_what_arrived_meanwhile_is_one_event(stream: RingStream, cancels: list[str]) -> None:
    entry = TokenLogprob(7, -1.0)
    stream.add([7], [entry])
    stream.add([8, 9], [entry, entry])
    stream.end(FinishReason.STOP, TIMING)
    assert [event async for event in stream] == [
        TokenEvent([7, 8, 9], [entry] * 3, FinishReason.STOP, TIMING)
    ]
    assert cancels == []


async def test_a_waiting_consumer_wakes_for_each_arrival(stream: RingStream) -> None:
    events = aiter(stream)
    for token in (5, 6):
        waiting = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        assert not waiting.done()
        stream.add([token], ())
        assert await waiting == TokenEvent([token])
    stream.end(FinishReason.LENGTH, TIMING)
    assert (await anext(events)).reason is FinishReason.LENGTH
    with pytest.raises(StopAsyncIteration):
        await anext(events)


async def test_a_failure_comes_after_the_tokens_before_it(stream: RingStream) -> None:
    stream.add([5], ())
    stream.fail(EngineFailure("gone"))
    events = aiter(stream)
    assert await anext(events) == TokenEvent([5])
    with pytest.raises(EngineFailure, match="gone"):
        await anext(events)


async def test_a_consumer_that_leaves_cancels(stream: RingStream, cancels: list[str]) -> None:
    stream.add([5], ())
    events = aiter(stream)
    await anext(events)
    await events.aclose()
    assert cancels == ["cancelled"]


async def test_a_cancelled_consumer_cancels(stream: RingStream, cancels: list[str]) -> None:
    waiting = asyncio.ensure_future(anext(aiter(stream)))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert cancels == ["cancelled"]
    stream.add([5], ())  # the session may still deliver


async def test_cancel_after_the_end_does_nothing(stream: RingStream, cancels: list[str]) -> None:
    stream.cancel()
    stream.end(FinishReason.CANCELLED, TIMING)
    stream.cancel()
    assert cancels == ["cancelled"]
    assert stream.ended
