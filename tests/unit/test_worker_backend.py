"""The session and the streams of backends that serve inside the workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest

from blink_server.backend import (
    Endpoint,
    FinishReason,
    GenerateRequest,
    ModelVersion,
    SamplingParams,
    TokenEvent,
)
from blink_server.errors import EngineFailure, InvalidModel, InvalidRequest, Overloaded, Unavailable
from blink_server.worker_backend import WorkerBackend, WorkerSession

LIMITS = {"context_length": 64, "max_queue": 2}
VERSION = ModelVersion("m", 1, Path("m/1"), {"limits": LIMITS, "eos_token_ids": [2]})
REQUEST = GenerateRequest(prompt_ids=[5, 6], max_tokens=8)

Generate = Callable[[GenerateRequest], AsyncGenerator[TokenEvent, None]]


class Scripted(WorkerBackend):
    name = "scripted"

    def __init__(self, generate: Generate) -> None:
        self._generate = generate

    def generate(
        self, version: ModelVersion, request: GenerateRequest
    ) -> AsyncGenerator[TokenEvent, None]:
        return self._generate(request)


async def session_of(generate: Generate) -> WorkerSession:
    session = await Scripted(generate).connect(VERSION, Endpoint("workers", {}))
    assert isinstance(session, WorkerSession)
    session.configure(VERSION.config)
    return session


async def parrot(request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]:
    for token_id in request.prompt_ids:
        yield TokenEvent([token_id])
    yield TokenEvent([], reason=FinishReason.STOP)


async def test_a_stream_has_the_generator_s_events_and_its_times() -> None:
    session = await session_of(parrot)
    stream = await session.submit(REQUEST)
    assert session.in_flight == 1
    events = [event async for event in stream]
    assert [list(event.token_ids) for event in events] == [[5], [6], []]
    assert [event.reason for event in events] == [None, None, FinishReason.STOP]
    timing = events[-1].timing
    assert timing is not None
    assert 0 < timing.claimed_ns <= timing.first_token_ns <= timing.finished_ns
    assert session.in_flight == 0


@pytest.mark.parametrize("begun", [True, False])
async def test_a_cancelled_request_ends_wherever_it_is(begun: bool) -> None:
    reached, closed = asyncio.Event(), asyncio.Event()

    async def hanging(request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]:
        try:
            yield TokenEvent([1])
            reached.set()
            await asyncio.Event().wait()
        finally:
            closed.set()

    session = await session_of(hanging)
    stream = await session.submit(REQUEST)
    if begun:
        await reached.wait()
    stream.cancel()
    stream.cancel()
    events = [event async for event in stream]
    assert events[-1].reason is FinishReason.CANCELLED
    assert len(events) == (2 if begun else 1)
    assert closed.is_set() is begun
    assert session.in_flight == 0


async def test_what_a_generator_raises_ends_its_request_alone() -> None:
    async def failing(request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]:
        yield TokenEvent([1])
        raise ZeroDivisionError("boom")

    session = await session_of(failing)
    stream = await session.submit(REQUEST)
    with pytest.raises(ZeroDivisionError, match="boom"):
        [event async for event in stream]
    assert session.in_flight == 0


async def test_an_end_without_a_reason_is_the_backend_s_failure() -> None:
    async def silent(request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]:
        yield TokenEvent([1])

    stream = await (await session_of(silent)).submit(REQUEST)
    with pytest.raises(EngineFailure, match="without a reason"):
        [event async for event in stream]


async def test_no_more_than_the_queue_s_length_are_in_flight() -> None:
    session = await session_of(parrot)
    streams = [await session.submit(REQUEST) for _ in range(2)]
    with pytest.raises(Overloaded, match="2 requests"):
        await session.submit(REQUEST)
    [event async for event in streams[0]]
    await session.submit(REQUEST)
    await session.close()
    assert session.in_flight == 0


async def test_log_probabilities_are_refused_by_field() -> None:
    session = await session_of(parrot)
    request = GenerateRequest(prompt_ids=[1], max_tokens=1, sampling=SamplingParams(logprobs=0))
    with pytest.raises(InvalidRequest) as caught:
        await session.submit(request)
    assert caught.value.param == "logprobs"


async def test_a_lost_session_takes_no_more_and_says_so_once() -> None:
    session = await session_of(parrot)
    reasons: list[str] = []
    session.on_closed(reasons.append)
    running = await session.submit(REQUEST)
    session.lose("the other side is gone")
    session.lose("again")
    with pytest.raises(Unavailable, match="the other side is gone"):
        await session.submit(REQUEST)
    assert [event.reason async for event in running][-1] is FinishReason.STOP
    session.on_closed(reasons.append)
    assert reasons == ["the other side is gone"] * 2


async def test_close_cancels_what_is_in_flight() -> None:
    async def endless(request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]:
        await asyncio.Event().wait()
        yield TokenEvent([1])

    session = await session_of(endless)
    stream = await session.submit(REQUEST)
    await session.close()
    assert [event.reason async for event in stream] == [FinishReason.CANCELLED]
    with pytest.raises(Unavailable):
        await session.submit(REQUEST)


def test_it_has_no_process_no_memory_and_builds_nothing(tmp_path: Path) -> None:
    backend = Scripted(parrot)
    assert list(backend.runner_command(VERSION, threads=1)) == []
    assert backend.estimate(VERSION) == 0
    with pytest.raises(InvalidModel, match="serves no weights"):
        backend.build(None, tmp_path, limits={}, options={}, progress=lambda stage, part: None)
