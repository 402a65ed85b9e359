"""A key's step runs the decoder, and samplers that read the logits of their own phase."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from blink_persistent.engines.cuda.steps import enqueue_step
from blink_persistent.graph_grid import DECODE, MIXED, PREFILL, GraphKey
from blink_persistent.testing.paged_decoder import INACTIVE, Part

STREAM = object()


class GreedySampler:
    """Chooses the best tokens at once; `chosen` by phase."""

    def __init__(self, logits: Any) -> None:
        self._logits, self.chosen = logits, dict[int, list[int]]()

    def record(self, phase: int, count: int, stream: Any, *, first: int = 0) -> None:
        assert stream is STREAM
        assert phase not in self.chosen, "a step has ended twice"
        self.chosen[phase] = self._logits[first : first + count].argmax(dim=1).tolist()


@pytest.mark.parametrize("phase", [DECODE, PREFILL, MIXED])
def test_each_phase_of_a_step_is_sampled_once(plain_case: Callable[..., Any], phase: int) -> None:
    case = plain_case()
    text, prompt = case.tokens(20), case.tokens(9)
    case.paged.prefill([Part((4, 6), 0, text[:-1])])
    case.paged.fill_prefill([Part((3,), 0, prompt)])
    case.paged.fill_decode([INACTIVE, Part((4, 6), 19, text[-1:])])
    inputs = {DECODE: case.paged.decode_inputs, PREFILL: case.paged.prefill_inputs}
    sampler = GreedySampler(case.paged.decoder.work.logits)
    keys = {
        DECODE: GraphKey(DECODE, 4, 4),
        PREFILL: GraphKey(PREFILL, 3, 16),
        MIXED: GraphKey(MIXED, 3, 16, 4),
    }
    enqueue_step(case.paged.decoder, inputs, keys[phase], sampler, STREAM)
    expected = {}
    if phase != DECODE:
        expected[PREFILL] = case.expect(prompt).logits[-1].argmax()
    if phase != PREFILL:
        expected[DECODE] = case.expect(text).logits[-1].argmax()
    rows = {DECODE: 1, PREFILL: 0}
    assert {each: tokens[rows[each]] for each, tokens in sampler.chosen.items()} == expected
    assert [len(tokens) for tokens in sampler.chosen.values()] == [
        part.sequences for part in reversed(keys[phase].parts)
    ]
