"""The graph against the plain numpy decoder, on full state: logits and every KV entry."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blink_persistent.engines.onnx_cpu.graph import build_graph
from blink_server.testing.llama_reference import forward
from blink_server.testing.memory_checkpoint import random_checkpoint, tiny_architecture

PROMPT = [3, 99, 14, 15, 92, 65, 35, 0, 100, 7, 9]
CONTINUATION = [20, 46, 64]

INT8_TOLERANCE = 0.1  # of the logits' spread

SHAPES: dict[str, dict[str, Any]] = {
    "grouped heads, tied": {},
    "one key head": {"kv_heads": 1},
    "all heads with keys": {"kv_heads": 4},
    "untied": {"tied_embeddings": False},
    "heads wider than the hidden size": {"head_dim": 48, "heads": 2, "kv_heads": 1},
    "one layer, other base and epsilon": {"layers": 1, "rope_theta": 500.0, "rms_norm_eps": 1e-2},
}


def _follow(driven: Any) -> list[np.ndarray]:
    """Logits after the prompt and after each token of the continuation."""
    logits = [driven.prefill(0, PROMPT)]
    logits += [driven.decode({0: token})[0] for token in CONTINUATION]
    return logits


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("bits", [None, 4])
def test_float_graph_equals_the_reference(drive: Any, name: str, bits: int | None):
    checkpoint = random_checkpoint(tiny_architecture(**SHAPES[name]), bits=bits)
    driven = drive(checkpoint, weights="float32")
    logits = _follow(driven)

    sequence = PROMPT + CONTINUATION
    expected = forward(checkpoint.architecture, checkpoint.dequantized(), sequence)
    np.testing.assert_allclose(logits, expected.logits[len(PROMPT) - 1 :], rtol=0, atol=2e-5)
    cache = driven.cache(0)
    np.testing.assert_allclose(cache[:, 0], expected.keys, rtol=0, atol=2e-5)
    np.testing.assert_allclose(cache[:, 1], expected.values, rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("bits", [None, 4])
def test_int8_graph_stays_near_the_reference(drive: Any, name: str, bits: int | None):
    checkpoint = random_checkpoint(tiny_architecture(**SHAPES[name]), bits=bits)
    logits = np.array(_follow(drive(checkpoint)))
    sequence = PROMPT + CONTINUATION
    expected = forward(checkpoint.architecture, checkpoint.dequantized(), sequence)
    wanted = expected.logits[len(PROMPT) - 1 :]
    # Rounding activations to 1/127 of their block's largest moves a logit by some percent.
    assert np.sqrt(np.mean((logits - wanted) ** 2)) < INT8_TOLERANCE * wanted.std()


@pytest.mark.parametrize("name", ["self_attn.v_proj", "mlp.down_proj"])
def test_one_wrong_matrix_is_far_outside_the_tolerance(name: str):
    right = random_checkpoint(tiny_architecture())
    other = random_checkpoint(tiny_architecture(), seed=1)
    weights = right.dequantized()
    expected = forward(right.architecture, weights, PROMPT).logits[-1]
    name = f"model.layers.1.{name}.weight"
    got = forward(right.architecture, weights | {name: other.dequantized()[name]}, PROMPT).logits
    difference = np.sqrt(np.mean((got[-1] - expected) ** 2)) / expected.std()
    assert difference > 3 * INT8_TOLERANCE


def test_progress_rises_to_one():
    seen: list[float] = []
    build_graph(random_checkpoint(tiny_architecture()), context_length=8, progress=seen.append)
    assert seen == sorted(seen)
    assert len(seen) == 3
    assert seen[-1] == 1.0


def test_the_checkpoint_is_left_as_it_was():
    checkpoint = random_checkpoint(tiny_architecture(), bits=4)
    before = checkpoint.dequantized()
    build_graph(checkpoint, context_length=8)
    for name, values in checkpoint.dequantized().items():
        np.testing.assert_array_equal(values, before[name])
