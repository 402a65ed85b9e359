"""What a sampler plugin keeps of a request goes with it: from prefill to decode, from row to row,
and through pauses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blink_persistent.gpu.structs import EngineTables, SamplingRow
from blink_persistent.graph_grid import DECODE, PREFILL, GraphKey
from blink_persistent.testing.observed import TraceKind
from blink_persistent.testing.scripted_harness import ScriptedHarness
from blink_persistent.testing.scripted_request import ScriptedRequest
from blink_persistent.testing.scripted_shape import ScriptedShape

ACTIVE = 1


class CountingEngine:
    """The scripted engine, with a sampler that keeps how many tokens it has chosen."""

    def __init__(self, harness: ScriptedHarness) -> None:
        self._scripted = harness.scripted
        shape = harness.shape
        tables = EngineTables.from_address(harness.engine.tables_address)
        self._rows: dict[int, Any] = {}
        for phase, count in ((DECODE, shape.max_rows), (PREFILL, shape.max_sequences)):
            rows = (SamplingRow * count).from_address(tables.buffers[phase].sampling)
            self._rows[phase] = np.frombuffer(memoryview(rows), np.dtype(SamplingRow))
        self.sampled = 0

    def step(self, phase: int, sequences: int, tokens: int, rows: int) -> None:
        self._scripted.step(phase, sequences, tokens, rows)
        for part in GraphKey(phase, sequences, tokens, rows).parts:
            for row in self._rows[part.phase][: part.sequences]:
                if row["flags"] & ACTIVE:
                    assert row["kept"] == row["output_length"]
                    row["kept"] += 1
                    self.sampled += 1


def count(shape: ScriptedShape, requests: list[ScriptedRequest]) -> dict[TraceKind, int]:
    """How often each thing happened while the requests were served."""
    with ScriptedHarness(shape, trace_capacity=10_000) as harness:
        engine: Any = CountingEngine(harness)
        harness.scripted = engine
        for slot, request in enumerate(requests):
            harness.submit(slot, 1, request)
        harness.settle()
        tokens = [harness.output(slot, 1) for slot in range(len(requests))]
        assert engine.sampled == sum(map(len, tokens)) > len(requests)
        kinds = [event.kind for event in harness.trace()]
    return {kind: kinds.count(kind) for kind in TraceKind}


@pytest.mark.parametrize("mixed", [0, 16])
@pytest.mark.parametrize("movable", [True, False])
def test_it_goes_from_the_first_token_to_the_second_and_with_its_row(
    movable: bool, mixed: int
) -> None:
    requests = [ScriptedRequest(tuple(range(3, 8 + i)), max_tokens=4 + 5 * i) for i in range(4)]
    shape = ScriptedShape(rows_movable=movable, max_mixed_tokens=mixed)
    happened = count(shape, [*requests, *requests[::-1]])
    assert (happened[TraceKind.MOVE] > 0) == movable


@pytest.mark.parametrize("mixed", [0, 16])
@pytest.mark.parametrize("deterministic", [True, False])
def test_it_outlasts_a_pause(deterministic: bool, mixed: int) -> None:
    # Four requests of up to 60 tokens in a pool of 124: the younger are paused again and again.
    shape = ScriptedShape(block_count=32, deterministic=deterministic, max_mixed_tokens=mixed)
    requests = [ScriptedRequest(tuple(range(3, 13 + i)), max_tokens=45) for i in range(4)]
    assert count(shape, requests)[TraceKind.PREEMPT] > 0
