from __future__ import annotations

import asyncio
from typing import Any

import pytest

from blink_persistent.testing.scripted_session import (
    continuation,
    events_of,
    generate,
    request,
    until_idle,
)
from blink_persistent.testing.scripted_shape import ScriptedShape
from blink_server.backend import FinishReason, SamplingParams
from blink_server.errors import InvalidRequest, Unavailable


async def test_many_requests_get_their_own_tokens(start_ring: Any, open_session: Any) -> None:
    ring = start_ring(ScriptedShape(max_rows=8))
    session = open_session(ring)
    room = asyncio.Semaphore(100)  # an ended request keeps its slot until its release is seen

    async def one(number: int) -> None:
        prompt = [3 + number % 90, *range(3, 3 + number % 40)]
        asked = request(prompt, max_tokens=1 + number % 30)
        async with room:
            tokens, last = await generate(session, asked)
        assert tokens == continuation(ring, asked)
        assert last.reason is FinishReason.LENGTH
        assert last.timing is not None
        timing = last.timing
        assert 0 < timing.claimed_ns <= timing.prefill_ns <= timing.first_token_ns
        assert timing.first_token_ns <= timing.finished_ns

    await asyncio.gather(*(one(number) for number in range(600)))
    await until_idle(session)
    assert ring.harness.ring.field("completions") == 600


async def test_a_preempted_request_shows_nothing_of_it(start_ring: Any, open_session: Any) -> None:
    ring = start_ring(ScriptedShape(block_count=24))
    ring.open_gate.clear()  # all of them are there before the first has its blocks
    session = open_session(ring)
    asked = [request([3 + n, 4, 5], max_tokens=60) for n in range(12)]
    streams = [await session.submit(one) for one in asked]
    ring.open_gate.set()
    for one, stream in zip(asked, streams, strict=True):
        tokens = [token for event in await events_of(stream) for token in event.token_ids]
        assert tokens == continuation(ring, one)
    assert ring.harness.ring.field("preemptions") > 0


async def test_stop_ids_end_a_request(start_ring: Any, open_session: Any) -> None:
    ring = start_ring()
    session = open_session(ring)
    plain = continuation(ring, request([9, 10], max_tokens=30))
    stop = plain[7]
    never = next(token for token in range(100) if token not in plain)
    asked = request([9, 10], max_tokens=30, stop_token_ids=[never, stop])
    tokens, last = await generate(session, asked)
    assert tokens == plain[: plain.index(stop) + 1]
    assert last.reason is FinishReason.STOP


async def test_end_of_sequence_unless_ignored(start_ring: Any, open_session: Any) -> None:
    ring = start_ring(ScriptedShape(eos_every=5))
    session = open_session(ring)
    eos = ring.harness.shape.eos_token_id
    for minimum in (0, 12):
        asked = request([9, 10], max_tokens=60, min_tokens=minimum)
        plain = continuation(ring, asked)
        tokens, last = await generate(session, asked)
        assert tokens == plain[: plain.index(eos) + 1]
        assert last.reason is FinishReason.STOP
        assert len(tokens) > minimum
    ignoring = request([9, 10], max_tokens=60, ignore_eos=True)
    tokens, last = await generate(session, ignoring)
    assert tokens == continuation(ring, ignoring)
    assert last.reason is FinishReason.LENGTH


async def test_max_tokens_beyond_the_context_end_at_it(start_ring: Any, open_session: Any) -> None:
    ring = start_ring()
    session = open_session(ring)
    prompt = list(range(3, 53))
    tokens, last = await generate(session, request(prompt, max_tokens=10_000))
    assert len(prompt) + len(tokens) == ring.harness.shape.context_length
    assert last.reason is FinishReason.LENGTH
    await until_idle(session)
    with pytest.raises(InvalidRequest, match="context of 96"):
        await session.submit(request(prompt * 2))
    assert session.in_flight == 0


@pytest.mark.parametrize("top", [0, 2, 20])
async def test_log_probabilities(start_ring: Any, open_session: Any, top: int) -> None:
    ring = start_ring()
    session = open_session(ring)
    asked = request([9, 10], max_tokens=15, sampling=SamplingParams(logprobs=top))
    entries = [
        entry async for event in await session.submit(asked) for entry in event.logprobs or ()
    ]
    size = ring.harness.shape.vocabulary_size
    tokens = continuation(ring, asked)
    assert [entry.token_id for entry in entries] == tokens
    assert [entry.logprob for entry in entries] == [-float(token) for token in tokens]
    assert [entry.top for entry in entries] == [
        tuple(((token + k) % size, -float(token) - k) for k in range(top)) for token in tokens
    ]


async def test_none_of_them_where_not_asked_for(start_ring: Any, open_session: Any) -> None:
    session = open_session(start_ring())
    async for event in await session.submit(request([9, 10])):
        assert event.logprobs is None


async def test_two_sessions_on_two_ranges(start_ring: Any, open_session: Any) -> None:
    ring = start_ring(ScriptedShape(ranges=2))
    sessions = [open_session(ring, range=index) for index in range(2)]
    asked = [request([3 + n, 50], max_tokens=25) for n in range(40)]
    answers = await asyncio.gather(*(generate(sessions[n % 2], one) for n, one in enumerate(asked)))
    assert [tokens for tokens, _ in answers] == [continuation(ring, one) for one in asked]
    submitted = [ring.harness.ring.atomic.submitted(slot) for slot in (0, 256)]
    assert submitted == [1, 1]


async def test_a_lost_ring_of_the_bell_delays_only(start_ring: Any, open_session: Any) -> None:
    ring = start_ring(ScriptedShape(ranges=2))
    session = open_session(ring, bell=ring.harness.bells[1])  # nobody rings it for range 0
    asked = request([9, 10], max_tokens=4)
    assert (await generate(session, asked))[0] == continuation(ring, asked)


async def test_a_later_owner_goes_on_with_the_tickets(start_ring: Any, open_session: Any) -> None:
    ring = start_ring()
    for tickets in (1, 2, 3):
        session = open_session(ring)
        asked = request([9, 10 + tickets], max_tokens=4)
        assert (await generate(session, asked))[0] == continuation(ring, asked)
        await session.close()
        assert ring.harness.ring.atomic.submitted(0) == tickets


async def test_tickets_wrap_past_zero(start_ring: Any, open_session: Any) -> None:
    ring = start_ring(scheduling=False)
    atomic = ring.harness.ring.atomic
    for ticket in (0x7FFFFFFF, 0xFFFFFFFE):  # refused as an empty record, which is good enough
        atomic.submit(0, ticket)
        atomic.release(0, ticket)
        ring.harness.scheduler.run_pass()
        ring.harness.scheduler.run_pass()
    session = open_session(ring)
    ring.start_scheduler()
    for ticket in (0xFFFFFFFF, 1, 2):
        asked = request([9, 10], max_tokens=4)
        assert (await generate(session, asked))[0] == continuation(ring, asked)
        await until_idle(session)
        assert atomic.submitted(0) == ticket


async def test_a_range_in_use_is_not_taken(start_ring: Any, open_session: Any) -> None:
    ring = start_ring(ScriptedShape(ranges=2), scheduling=False)
    ring.harness.ring.atomic.submit(300, 1)
    with pytest.raises(Unavailable, match="slot 300"):
        open_session(ring, range=1)
