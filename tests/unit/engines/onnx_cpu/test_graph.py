"""The graph against the plain numpy decoder, on full state: logits and every KV entry."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from blink_persistent.engines.onnx_cpu.graph import build_graph
from blink_server.importers.quantizing import QuantizingCheckpoint
from blink_server.testing.llama_reference import forward
from blink_server.testing.memory_checkpoint import (
    MemoryCheckpoint,
    quantize,
    random_checkpoint,
    tiny_architecture,
)

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
    "Qwen 2: biases": {"attention_bias": True},
    "Qwen 3: norms of heads": {"qk_norm": True, "head_dim": 32},
    "slowed rotary": {"rope_divisors": (1.0, 1.0, 1.5, 2.0, 3.0, 6.0, 8.0, 8.0)},
    "all of them, untied": {
        "attention_bias": True,
        "qk_norm": True,
        "rope_divisors": (4.0,) * 8,
        "tied_embeddings": False,
    },
}


def _checkpoint(name: str, bits: int | None, seed: int = 0) -> MemoryCheckpoint:
    return random_checkpoint(tiny_architecture(**SHAPES[name]), bits=bits, seed=seed)


def _doubles(checkpoint: MemoryCheckpoint) -> dict[str, np.ndarray]:
    return {name: each.astype(np.float64) for name, each in checkpoint.dequantized().items()}


def _follow(driven: Any) -> list[np.ndarray]:
    """Logits after the prompt and after each token of the continuation."""
    logits = [driven.prefill(0, PROMPT)]
    logits += [driven.decode({0: token})[0] for token in CONTINUATION]
    return logits


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("bits", [None, 4])
def test_float_graph_equals_the_reference(drive: Any, name: str, bits: int | None):
    checkpoint = _checkpoint(name, bits)
    driven = drive(checkpoint, compute="fp32")
    logits = _follow(driven)

    sequence = PROMPT + CONTINUATION
    expected = forward(checkpoint.architecture, _doubles(checkpoint), sequence)
    np.testing.assert_allclose(logits, expected.logits[len(PROMPT) - 1 :], rtol=0, atol=2e-5)
    cache = driven.cache(0)
    np.testing.assert_allclose(cache[:, 0], expected.keys, rtol=0, atol=2e-5)
    np.testing.assert_allclose(cache[:, 1], expected.values, rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("bits", [4, 8])
def test_int8_graph_stays_near_the_reference(drive: Any, name: str, bits: int | None):
    checkpoint = _checkpoint(name, bits)
    logits = np.array(_follow(drive(checkpoint)))
    sequence = PROMPT + CONTINUATION
    expected = forward(checkpoint.architecture, _doubles(checkpoint), sequence)
    wanted = expected.logits[len(PROMPT) - 1 :]
    # Rounding activations to 1/127 of their block's largest moves a logit by some percent.
    assert np.sqrt(np.mean((logits - wanted) ** 2)) < INT8_TOLERANCE * wanted.std()


def test_int8_graph_stays_near_the_reference_in_four_bits(drive: Any):
    floats = _checkpoint("all of them, untied", None)
    quantizing = QuantizingCheckpoint(floats, 4)
    tensors = {name: quantizing.tensor(name) for name in floats.tensors}
    checkpoint = MemoryCheckpoint(floats.architecture, tensors)
    notes: list[str] = []
    build_graph(checkpoint, context_length=16, note=notes.append)
    assert notes == ["holds matrices exactly: 2 as 8-bit blocks, 14 as 4-bit blocks"]

    logits = np.array(_follow(drive(checkpoint)))
    expected = forward(checkpoint.architecture, _doubles(checkpoint), PROMPT + CONTINUATION)
    wanted = expected.logits[len(PROMPT) - 1 :]
    assert np.sqrt(np.mean((logits - wanted) ** 2)) < INT8_TOLERANCE * wanted.std()


def test_matrices_of_floats_stay_floats_beside_quantized_ones(drive: Any):
    checkpoint = _checkpoint("untied", None)
    for name in ("model.layers.0.mlp.down_proj.weight", "model.layers.1.self_attn.q_proj.weight"):
        checkpoint.tensors[name] = quantize(checkpoint.tensors[name], 8, symmetric=True)
    notes: list[str] = []
    build_graph(checkpoint, context_length=16, note=notes.append)
    # q_proj is multiplied together with two of floats.
    assert notes == ["holds matrices exactly: 15 as float32, 1 as 8-bit blocks"]

    logits = np.array(_follow(drive(checkpoint)))
    expected = forward(checkpoint.architecture, _doubles(checkpoint), PROMPT + CONTINUATION)
    wanted = expected.logits[len(PROMPT) - 1 :]
    error = np.sqrt(np.mean((logits - wanted) ** 2)) / wanted.std()
    assert 1e-5 < error < INT8_TOLERANCE / 3


def test_the_error_of_zero_points_that_are_not_whole_is_told():
    notes: list[str] = []
    build_graph(_checkpoint("untied", 4), context_length=16, note=notes.append)
    assert len(notes) == 1
    assert notes[0].startswith("holds matrices: 16 as 8-bit blocks; 2 of them exactly, in the")
    assert re.search(r"no weight is off by more than 0\.\d\d% of the largest", notes[0])


@pytest.mark.parametrize("part", ["q_proj.bias", "v_proj.bias", "q_norm.weight", "k_norm.weight"])
def test_one_wrong_vector_is_far_outside_the_tolerance(part: str):
    weights = _doubles(_checkpoint("all of them, untied", None))
    other = _doubles(_checkpoint("all of them, untied", None, seed=1))
    architecture = tiny_architecture(**SHAPES["all of them, untied"])
    expected = forward(architecture, weights, PROMPT).logits[-1]
    name = f"model.layers.0.self_attn.{part}"
    got = forward(architecture, weights | {name: other[name]}, PROMPT).logits[-1]
    assert np.abs(got - expected).max() > 100 * 2e-5


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
