"""Grammars through a session: held once, given back, and the same after a preemption."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from blink_persistent.frontend.session import RingSession
from blink_persistent.testing.noise_engine import NoiseEngine
from blink_persistent.testing.scripted_shape import ScriptedShape
from blink_persistent.testing.threaded_ring import ThreadedRing
from blink_server.backend import FinishReason, GenerateRequest, Grammar, SamplingParams, TokenStream
from blink_server.errors import InvalidRequest, Overloaded
from blink_server.testing.byte_tokens import VOCABULARY, byte_tokens, grammar_of, text_of

EOS = VOCABULARY
SHAPE = ScriptedShape(
    vocabulary_size=VOCABULARY + 1, eos_token_id=EOS, context_length=256, block_count=400
)
TOKENS = byte_tokens()
SCHEMA = {
    "type": "object",
    "properties": {
        "a": {"type": "string", "maxLength": 4},
        "b": {"type": "array", "items": {"type": "integer", "maximum": 99, "minimum": 0}},
    },
    "required": ["a", "b"],
}
OBJECT = grammar_of({"type": "json_schema", "schema": SCHEMA}, TOKENS)


@pytest.fixture
def noisy(start_ring: Callable[..., ThreadedRing]) -> Callable[..., ThreadedRing]:
    def start(shape: ScriptedShape = SHAPE) -> ThreadedRing:
        ring = start_ring(shape)
        engine: Any = NoiseEngine(ring.harness.engine, shape.vocabulary_size)
        ring.harness.scripted = engine
        return ring

    return start


def request(grammar: Grammar | None, *, seed: int = 0, **fields: Any) -> GenerateRequest:
    sampling = SamplingParams(seed=seed, **fields.pop("sampling", {}))
    defaults: dict[str, Any] = {"prompt_ids": [seed % 200, 7], "max_tokens": 120}
    return GenerateRequest(sampling=sampling, grammar=grammar, **{**defaults, **fields})


async def answer(session: RingSession, asked: GenerateRequest) -> tuple[list[int], FinishReason]:
    return await read(await session.submit(asked))


async def read(stream: TokenStream) -> tuple[list[int], FinishReason]:
    tokens: list[int] = []
    async for event in stream:
        tokens += event.token_ids
        if event.reason is not None:
            return tokens, event.reason
    raise AssertionError("a stream ends with a reason")


async def emptied(session: RingSession) -> None:
    """A slot is empty a little after its stream has ended."""
    while session.in_flight:
        session._collect()
        await asyncio.sleep(0)


async def answers(
    ring: ThreadedRing, session: RingSession, grammar: Grammar, count: int
) -> list[tuple[list[int], FinishReason]]:
    """All of them are there before the first has a token."""
    ring.open_gate.clear()
    streams = [await session.submit(request(grammar, seed=seed)) for seed in range(count)]
    ring.open_gate.set()
    return [await read(stream) for stream in streams]


def assert_fulfils(tokens: list[int], reason: FinishReason) -> bool:
    """Of one that has ended by itself the whole text; returns whether it has."""
    if reason is not FinishReason.STOP:
        assert reason is FinishReason.LENGTH
        return False
    assert tokens[-1] == EOS
    Draft202012Validator(SCHEMA).validate(json.loads(text_of(tokens[:-1])))
    return True


async def test_answers_fulfil_their_schema_and_share_its_table(
    noisy: Any, open_session: Any
) -> None:
    session = open_session(noisy())
    free = session._space.aux.free_words
    streams = [await session.submit(request(OBJECT, seed=seed)) for seed in range(12)]
    assert session._grammars.held == 1
    ended = [assert_fulfils(*await read(stream)) for stream in streams]
    assert sum(ended) > 3
    await emptied(session)
    assert session._grammars.held == 0
    assert session._space.aux.free_words == free


async def test_a_preempted_answer_goes_on_in_its_state(noisy: Any, open_session: Any) -> None:
    ample, scarce = noisy(), noisy(replace(SHAPE, block_count=40))
    long = {"type": "string", "minLength": 60, "maxLength": 70}
    grammar = grammar_of({"type": "json_schema", "schema": long}, TOKENS)
    expected = await answers(ample, open_session(ample), grammar, 8)
    found = await answers(scarce, open_session(scarce), grammar, 8)
    assert found == expected
    assert ample.harness.ring.field("preemptions") == 0
    assert scarce.harness.ring.field("preemptions") > 0


async def test_cancelled_answers_give_their_table_back(noisy: Any, open_session: Any) -> None:
    ring = noisy()
    session = open_session(ring)
    ring.open_gate.clear()
    streams = [await session.submit(request(OBJECT, seed=seed)) for seed in range(6)]
    assert session._grammars.held == 1
    for stream in streams:
        stream.cancel()
    ring.open_gate.set()
    await emptied(session)
    assert session._grammars.held == 0


async def test_ignore_eos_and_min_tokens_give_way(noisy: Any, open_session: Any) -> None:
    grammar = grammar_of({"type": "choice", "texts": ["ab"]}, TOKENS)
    asked = request(grammar, ignore_eos=True, min_tokens=5, max_tokens=20)
    tokens, reason = await answer(open_session(noisy()), asked)
    assert text_of([token for token in tokens if token != EOS]) == b"ab"
    assert (len(tokens), reason) == (5, FinishReason.STOP)


async def test_log_probabilities_under_a_grammar_are_finite_for_what_is_chosen(
    noisy: Any, open_session: Any
) -> None:
    asked = request(OBJECT, sampling={"logprobs": 2, "temperature": 1.0}, max_tokens=16)
    async for event in await open_session(noisy()).submit(asked):
        for entry in event.logprobs or ():
            assert entry.logprob <= 0
            assert entry.logprob > -50


async def test_tables_that_do_not_fit_are_refused(noisy: Any, open_session: Any) -> None:
    session = open_session(noisy())
    long = grammar_of({"type": "json_object"}, TOKENS)
    with pytest.raises(InvalidRequest, match="response_format: needs tables of more than"):
        await session.submit(request(long))
    half = session._space.aux.allocate(session._space.aux.words - 8)
    assert half is not None
    with pytest.raises(Overloaded, match="grammar of another request"):
        await session.submit(request(OBJECT))
    session._space.aux.free(half)
    assert (await answer(session, request(OBJECT)))[1] in (FinishReason.STOP, FinishReason.LENGTH)
    await emptied(session)
    assert session._grammars.held == 0


async def test_end_of_sequence_is_no_part_of_a_text(noisy: Any, open_session: Any) -> None:
    """Here its id is a token that spells a letter."""
    session = open_session(noisy(replace(SHAPE, eos_token_id=ord("z"))))
    with pytest.raises(InvalidRequest, match="vocabulary cannot spell it"):
        await session.submit(request(grammar_of({"type": "text", "text": "z"}, TOKENS)))
    found = grammar_of({"type": "choice", "texts": ["zz", "a"]}, TOKENS)
    assert await answer(session, request(found)) == ([ord("a"), ord("z")], FinishReason.STOP)
