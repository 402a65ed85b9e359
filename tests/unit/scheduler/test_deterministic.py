"""A paused request's answer: bit-equal where generated tokens are replayed by decode steps.

The scripted engine tells entries computed by decode from those by prefill, as a real engine's
rounding does, so a request whose tokens are read in by prefill goes on differently.
"""

from __future__ import annotations

from dataclasses import replace

from blink_persistent.testing.observed import TraceKind
from blink_persistent.testing.scripted_harness import ScriptedHarness
from blink_persistent.testing.scripted_request import ScriptedRequest
from blink_persistent.testing.scripted_shape import ScriptedShape

# Four requests of up to 60 tokens in a pool of 124: the younger are paused again and again.
SHAPE = ScriptedShape(block_count=32, tells_phases=True)
REQUESTS = [ScriptedRequest(tuple(range(3, 13 + i)), max_tokens=45) for i in range(4)]


def outputs(shape: ScriptedShape) -> tuple[list[tuple[int, ...]], int]:
    """The requests' tokens when served together, and how often one was paused."""
    with ScriptedHarness(shape, trace_capacity=10_000) as harness:
        for slot, request in enumerate(REQUESTS):
            harness.submit(slot, 1, request)
        harness.settle()
        kinds = [event.kind for event in harness.trace()]
        tokens = [harness.output(slot, 1) for slot in range(len(REQUESTS))]
    return tokens, kinds.count(TraceKind.PREEMPT)


def test_replayed_requests_are_bit_equal_to_undisturbed_ones() -> None:
    together, pauses = outputs(replace(SHAPE, deterministic=True))
    assert pauses > 0
    assert together == [request.answer(SHAPE).tokens for request in REQUESTS]


def test_prefilled_again_they_are_not() -> None:
    together, pauses = outputs(SHAPE)
    assert pauses > 0
    alone = [request.answer(SHAPE).tokens for request in REQUESTS]
    assert together[0] == alone[0], "the oldest is never paused"
    assert together != alone
    assert [len(tokens) for tokens in together] == [len(tokens) for tokens in alone]
