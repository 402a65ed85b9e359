from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from blink_server.backend import (
    Endpoint,
    FinishReason,
    GenerateRequest,
    ModelVersion,
    SessionLimits,
    TokenEvent,
)
from blink_server.errors import Overloaded, Unavailable
from blink_server.testing.fake_backend import FakeBackend, FakeSession, Respond, answer, events
from blink_server.testing.tiny_tokenizer import byte_level_tokenizer
from blink_server.text.tokenizers import HuggingFaceTokenizer

LIMITS = SessionLimits(64, 300, (2,))
REQUEST = GenerateRequest(prompt_ids=[1], max_tokens=8)


def session(respond: Respond, **options: int) -> FakeSession:
    return FakeSession(respond, LIMITS, **options)


async def test_a_cancelled_stream_ends_with_its_reason() -> None:
    fake = session(lambda request: [TokenEvent([5]), asyncio.Event()])
    stream = await fake.submit(REQUEST)
    seen = []
    async for event in stream:
        seen.append(event.reason)
        stream.cancel()
    assert seen == [None, FinishReason.CANCELLED]
    assert fake.idle.is_set()


async def test_slots_run_out_and_come_back() -> None:
    fake = session(lambda request: events([5]), free_slots=1)
    stream = await fake.submit(REQUEST)
    with pytest.raises(Overloaded):
        await fake.submit(REQUEST)
    assert [event.reason async for event in stream] == [FinishReason.STOP]
    assert fake.in_flight == 0
    await fake.submit(REQUEST)
    await fake.attempted(3)


async def test_a_shut_session_refuses_and_tells_once() -> None:
    fake = session(lambda request: [])
    reasons: list[str] = []
    fake.on_closed(reasons.append)
    fake.shut("gone")
    fake.shut("again")
    assert reasons == ["gone"]
    with pytest.raises(Unavailable, match="gone"):
        await fake.submit(REQUEST)


async def test_answers_obey_the_limits_of_the_request() -> None:
    tokenizer = HuggingFaceTokenizer(byte_level_tokenizer())
    rule = answer(tokenizer, "abc", eos=2, per_event=10)
    steps = [step for step in rule(REQUEST) if isinstance(step, TokenEvent)]
    assert steps[-1].token_ids[-1] == 2
    assert steps[-1].reason is FinishReason.STOP
    short = GenerateRequest(prompt_ids=[1], max_tokens=1)
    steps = [step for step in rule(short) if isinstance(step, TokenEvent)]
    assert [(len(step.token_ids), step.reason) for step in steps] == [(1, FinishReason.LENGTH)]


async def test_a_backend_connects_to_the_session_it_was_given() -> None:
    fake = session(lambda request: [])
    backend = FakeBackend(lambda version, endpoint: fake)
    endpoint = Endpoint("fake", {})
    assert await backend.connect(ModelVersion("m", 1, Path("unused"), {}), endpoint) is fake
    assert backend.connected == [("m:1", endpoint)]
