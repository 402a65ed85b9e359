from __future__ import annotations

import asyncio
import contextlib
import os
from typing import Any

import pytest

from blink_persistent import _native
from blink_persistent.frontend.session import RingSession
from blink_persistent.frontend.stream import RingStream
from blink_persistent.ring import Reason, SlotState
from blink_persistent.testing.scripted_shape import ScriptedShape
from blink_persistent.testing.threaded_ring import ThreadedRing
from blink_server.backend import FinishReason, GenerateRequest, SamplingParams, TokenEvent
from blink_server.errors import EngineFailure, InvalidRequest, Overloaded, Unavailable


class TightShape(ScriptedShape):
    """Arenas that hold little more than two requests at full length."""

    def ring(self) -> _native.RingShape:
        return _native.RingShape(self.ranges, self.slots_per_range, 1024, 1024, 1024)


def request(prompt: list[int], max_tokens: int = 20, **fields: Any) -> GenerateRequest:
    return GenerateRequest(prompt_ids=prompt, max_tokens=max_tokens, **fields)


async def events_of(stream: RingStream) -> list[TokenEvent]:
    """Everything a stream yields, which must end."""
    async with asyncio.timeout(20):
        return [event async for event in stream]


async def generate(session: RingSession, asked: GenerateRequest) -> tuple[list[int], TokenEvent]:
    """All tokens of a request, and its last event."""
    events = await events_of(await session.submit(asked))
    return [token for event in events for token in event.token_ids], events[-1]


def continuation(ring: ThreadedRing, asked: GenerateRequest) -> list[int]:
    rule, prompt = ring.harness.shape.rule, list(asked.prompt_ids)
    return _native.scripted_continuation(rule, prompt, asked.max_tokens, asked.min_tokens)


async def until_idle(session: RingSession) -> None:
    async with asyncio.timeout(20):
        if session.in_flight:
            session._idle.clear()
            await session._idle.wait()


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
    session = open_session(ring)
    asked = [request([3 + n, 4, 5], max_tokens=60) for n in range(12)]
    answers = await asyncio.gather(*(generate(session, one) for one in asked))
    assert [tokens for tokens, _ in answers] == [continuation(ring, one) for one in asked]
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
    ring.pause_after = 1
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
    ring.open_gate.set()
    await until_idle(session)
    assert ring.harness.ring.field("generated_tokens") < 90


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
    with pytest.raises(EngineFailure, match="'a' failed: the runner is gone"):
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
