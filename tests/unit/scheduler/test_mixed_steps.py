"""Prompts read beside rows that decode: in one mixed step, or in turns; never more than a chunk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from blink_persistent.graph_grid import DECODE, MIXED, PREFILL
from blink_persistent.ring import SlotState
from blink_persistent.testing.observed import Outcome, TraceEvent, TraceKind
from blink_persistent.testing.scripted_harness import ScriptedHarness
from blink_persistent.testing.scripted_request import ScriptedRequest
from blink_persistent.testing.scripted_shape import ScriptedShape

TURNS = ScriptedShape(max_prefill_tokens=64, prefill_chunk=12)
SHAPE = replace(TURNS, max_mixed_tokens=16)
LONG = ScriptedRequest((5, 6, 7), max_tokens=60)


@pytest.fixture
def harness() -> Iterator[ScriptedHarness]:
    with ScriptedHarness(SHAPE) as harness:
        yield harness


def prompt(length: int) -> tuple[int, ...]:
    return tuple(3 + at % 90 for at in range(length))


def start_decoding(harness: ScriptedHarness, *slots: int) -> None:
    """Requests that decode until the end of the test: a decode step of them runs."""
    for slot in slots:
        harness.submit(slot, 1, LONG)
    while not all(harness.status(slot).generated for slot in slots):
        step(harness)
    harness.trace()


def step(harness: ScriptedHarness) -> None:
    """End the running step, if any, and launch the next."""
    if harness.flight is not None:
        harness.finish_step()
    while harness.run_pass() == Outcome.PROGRESS and harness.flight is None:
        pass
    harness.run_pass()  # shows what is new, and sees what was written meanwhile


def launches(harness: ScriptedHarness) -> list[tuple[int, TraceEvent]]:
    """(phase, event) of the launches since the last call."""
    return [
        (harness.shape.grid.keys[event.a].phase, event)
        for event in harness.trace()
        if event.kind == TraceKind.LAUNCH
    ]


def answers_are_right(harness: ScriptedHarness, requests: dict[int, ScriptedRequest]) -> None:
    harness.settle()
    for slot, request in requests.items():
        assert harness.output(slot, 1) == request.answer(harness.shape).tokens, slot


def test_a_row_gets_a_token_with_every_chunk_and_is_not_paused(harness: ScriptedHarness) -> None:
    start_decoding(harness, 0)
    newcomer = ScriptedRequest(prompt(30), max_tokens=4)
    harness.submit(1, 1, newcomer)
    step(harness)
    before = harness.status(0).generated
    for chunks in range(1, 4):  # of 12, 12 and 6 tokens
        step(harness)
        assert harness.status(0).state == SlotState.DECODE_PROCESSING
        assert harness.status(0).generated == before + chunks
    assert [(phase, event.c) for phase, event in launches(harness)] == [
        (DECODE, 1),
        *((MIXED, tokens) for tokens in (12, 12, 6)),
    ][-4:]
    answers_are_right(harness, {0: LONG, 1: newcomer})


def test_a_prompt_decodes_in_the_step_after_its_last_chunk(harness: ScriptedHarness) -> None:
    start_decoding(harness, 0)
    for slot in (1, 2):
        harness.submit(slot, 1, ScriptedRequest(prompt(12), max_tokens=9))
    step(harness)
    for _ in range(3):
        step(harness)
    assert [harness.status(slot).generated for slot in (1, 2)] == [2, 1]
    assert [phase for phase, _ in launches(harness)][-3:] == [MIXED, MIXED, DECODE]


def test_mixed_steps_have_a_counter_of_their_own(harness: ScriptedHarness) -> None:
    start_decoding(harness, 0)
    harness.submit(1, 1, ScriptedRequest(prompt(30), max_tokens=4))
    harness.settle()
    kinds = ("decode_launches", "prefill_launches", "mixed_launches")
    decodes, prefills, mixed = harness.counters(*kinds)
    assert (prefills, mixed) == (1, 3)
    assert harness.counters("steps") == [decodes + prefills + mixed] == [harness.ring.launched()]
    assert harness.counters("prompt_tokens") == [3 + 30]
    assert sum(harness.ring.header["graph_launches"][0].tolist()) == decodes + prefills + mixed


def test_idle_a_prompt_is_read_in_the_largest_step(harness: ScriptedHarness) -> None:
    harness.submit(0, 1, ScriptedRequest(prompt(60), max_tokens=4))
    harness.settle()
    assert [(phase, e.c) for phase, e in launches(harness)][:2] == [(PREFILL, 60), (DECODE, 1)]


def test_what_no_mixed_graph_holds_is_done_in_turns() -> None:
    with ScriptedHarness(replace(SHAPE, max_mixed_rows=1)) as harness:
        start_decoding(harness, 0, 1)
        harness.submit(2, 1, ScriptedRequest(prompt(30), max_tokens=4))
        step(harness)
        before = harness.status(0).generated
        step(harness)
        step(harness)
        assert harness.status(0).generated == before + 1
        assert harness.status(0).state == SlotState.DECODE_PAUSED
        phases = [phase for phase, _ in launches(harness)]
        assert phases[-3:] in ([PREFILL, DECODE, PREFILL], [DECODE, PREFILL, DECODE])
        answers_are_right(harness, {0: LONG, 1: LONG})
        assert MIXED not in {phase for phase, _ in launches(harness)[:6]}


def test_who_is_admitted_needs_no_row_of_the_mixed_step_yet() -> None:
    with ScriptedHarness(replace(SHAPE, max_mixed_rows=2)) as harness:
        start_decoding(harness, 0, 1)
        newcomer = ScriptedRequest(prompt(12), max_tokens=4)
        harness.submit(2, 1, newcomer)
        step(harness)
        step(harness)
        (_, _), (phase, event) = launches(harness)
        assert (phase, harness.shape.grid.keys[event.a].rows) == (MIXED, 2)
        answers_are_right(harness, {0: LONG, 1: LONG, 2: newcomer})


def test_a_mixed_step_has_as_many_sequences_as_its_key() -> None:
    with ScriptedHarness(replace(SHAPE, mixed_sequences=1)) as harness:
        start_decoding(harness, 0)
        short = ScriptedRequest((9, 8), max_tokens=3)
        for slot in (1, 2, 3):
            harness.submit(slot, 1, short)
        answers_are_right(harness, {0: LONG, 1: short, 2: short, 3: short})
        mixed = [event.b for phase, event in launches(harness) if phase == MIXED]
        assert mixed == [1, 1, 1]


def test_rows_take_the_blocks_of_a_prompt_that_is_read_in_part() -> None:
    """Rows come first: the youngest is the prompt, which waits again and is read from its start."""
    shape = replace(SHAPE, block_size=2, block_count=24, prefill_chunk=4)
    requests = {0: ScriptedRequest(prompt(10), max_tokens=36), 1: ScriptedRequest(prompt(30))}
    with ScriptedHarness(shape) as harness:
        harness.submit(0, 1, requests[0])
        step(harness)
        harness.submit(1, 1, requests[1])
        harness.settle()
        events = harness.trace()
        preempted = next(i for i, e in enumerate(events) if e.kind == TraceKind.PREEMPT)
        assert events[preempted].a == 1
        mixed = [e for e in events[:preempted] if e.kind == TraceKind.LAUNCH and e.c == 4]
        assert 0 < len(mixed) < 30 / 4, "it was not read in part"
        for slot, request in requests.items():
            assert harness.output(slot, 1) == request.answer(shape).tokens


@pytest.mark.parametrize("chunk", [2, 5, 12, 64])
@pytest.mark.parametrize("shape", [TURNS, SHAPE], ids=["alternating", "mixed"])
def test_the_delay_of_a_token_is_bounded_by_the_chunk(shape: ScriptedShape, chunk: int) -> None:
    """With a flood of prompts, the prompt tokens computed between two tokens of a row."""
    with ScriptedHarness(replace(shape, prefill_chunk=chunk)) as harness:
        start_decoding(harness, 0)
        for slot in range(1, 30):
            harness.submit(slot, 1, ScriptedRequest(prompt(7 * slot % 80 + 1), max_tokens=3))
        harness.settle()
        delays = [0]  # prompt tokens computed before, or with, each step of the row
        for event in harness.trace():
            if (event.kind, event.a) == (TraceKind.END, 0):
                break
            if event.kind == TraceKind.LAUNCH:
                phase = harness.shape.grid.keys[event.a].phase
                delays[-1] += event.c if phase != DECODE else 0
                delays += [0] if phase != PREFILL else []
    assert max(delays) == min(chunk, shape.max_mixed_tokens or chunk)
    assert len(delays) > 50


def test_a_flood_of_prompts_leaves_every_step_a_token_where_they_are_mixed() -> None:
    """In turns a row gets a token every other step; mixed it gets one with each."""
    tokens = {}
    for shape in (TURNS, SHAPE):
        with ScriptedHarness(shape) as harness:
            start_decoding(harness, 0)
            for slot in range(1, 30):
                harness.submit(slot, 1, ScriptedRequest(prompt(60), max_tokens=1))
            step(harness)
            before = harness.status(0).generated
            for _ in range(20):
                step(harness)
            tokens[shape] = harness.status(0).generated - before
    assert tokens == {TURNS: 10, SHAPE: 20}
