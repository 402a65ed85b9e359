"""Asking a session over a scripted ring, and the answers that the script gives."""

from __future__ import annotations

import asyncio
from typing import Any

from blink_persistent import _native
from blink_persistent.frontend.session import RingSession
from blink_persistent.frontend.stream import RingStream
from blink_persistent.testing.threaded_ring import ThreadedRing
from blink_server.backend import GenerateRequest, TokenEvent

_WAIT_SECONDS = 20  # far beyond what anything scripted takes


def request(prompt: list[int], max_tokens: int = 20, **fields: Any) -> GenerateRequest:
    """A request with the contract's defaults but for what is given."""
    return GenerateRequest(prompt_ids=prompt, max_tokens=max_tokens, **fields)


async def events_of(stream: RingStream) -> list[TokenEvent]:
    """Everything a stream yields, which must end."""
    async with asyncio.timeout(_WAIT_SECONDS):
        return [event async for event in stream]


async def generate(session: RingSession, asked: GenerateRequest) -> tuple[list[int], TokenEvent]:
    """All tokens of a request, and its last event."""
    events = await events_of(await session.submit(asked))
    return [token for event in events for token in event.token_ids], events[-1]


def continuation(ring: ThreadedRing, asked: GenerateRequest) -> list[int]:
    """The tokens that the script gives, up to max_tokens and past any end."""
    rule, prompt = ring.harness.shape.rule, list(asked.prompt_ids)
    return _native.scripted_continuation(rule, prompt, asked.max_tokens, asked.min_tokens)


async def until_idle(session: RingSession) -> None:
    """Return when every slot is free again."""
    async with asyncio.timeout(_WAIT_SECONDS):
        if session.in_flight:
            session._idle.clear()
            await session._idle.wait()
