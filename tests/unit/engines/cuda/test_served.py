"""Requests through the scheduler and the decoder together, without a GPU: mixed steps or turns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from blink_server.testing.memory_checkpoint import random_checkpoint, tiny_architecture

torch = pytest.importorskip("torch", reason="torch is not installed")

from blink_persistent.engines import EngineShape
from blink_persistent.engines.cuda.weights import fill_weights
from blink_persistent.graph_grid import DECODE, MIXED, PREFILL, default_grid
from blink_persistent.testing.cuda_on_host import CudaOnHost
from blink_persistent.testing.greedy import check_greedy
from blink_persistent.testing.scripted_request import ScriptedRequest
from blink_persistent.testing.served_engine import ServedEngine

MODEL = tiny_architecture(context_length=96)
CHECKPOINT = random_checkpoint(MODEL, seed=3)
PLAIN = CHECKPOINT.dequantized()
SHAPE = EngineShape(
    grid=default_grid(4, 64, max_sequences=3, max_mixed_tokens=24),
    context_length=96,
    vocabulary_size=MODEL.vocabulary_size,
    eos_token_ids=(),
    block_size=16,
    block_count=60,
    rows_movable=True,
    prefill_chunk=24,
)


def requests() -> list[ScriptedRequest]:
    rng = np.random.default_rng(2)
    prompts = (rng.integers(0, MODEL.vocabulary_size, rng.integers(1, 70)) for _ in range(9))
    return [ScriptedRequest(tuple(prompt.tolist()), max_tokens=12) for prompt in prompts]


def serve(shape: EngineShape) -> tuple[list[list[int]], dict[int, int], int]:
    """The answers, launches by phase, preemptions."""

    def fill(name: str, part: Any) -> None:
        part.copy_(torch.from_numpy(PLAIN[name]))

    weights = fill_weights(MODEL, fill, device="cpu", dtype=torch.float32)
    engine = CudaOnHost(MODEL, weights, shape)
    with ServedEngine(engine) as served:
        answers = served.answers(requests())
        return answers, dict(engine.launches), int(served.ring.field("preemptions"))


@pytest.mark.parametrize("block_count", [60, 8])
def test_answers_of_mixed_steps_are_the_models(block_count: int) -> None:
    """With plenty of KV blocks, and with so few that requests are paused and computed again."""
    answers, launches, preemptions = serve(replace(SHAPE, block_count=block_count))
    assert launches[MIXED] > 5
    assert (preemptions > 0) == (block_count == 8)
    for request, answer in zip(requests(), answers, strict=True):
        assert len(answer) == request.max_tokens
    prompts = [request.prompt for request in requests()]
    check_greedy(MODEL, PLAIN, zip(prompts, answers, strict=True))


def test_answers_in_turns_are_the_same() -> None:
    mixed, in_turns = serve(SHAPE), serve(replace(SHAPE, grid=SHAPE.grid.without_mixed()))
    assert mixed[0] == in_turns[0]
    assert set(in_turns[1]) == {DECODE, PREFILL}
    assert sum(mixed[1].values()) < sum(in_turns[1].values())
