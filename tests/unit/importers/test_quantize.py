"""Quantized matrices against the floats they came from."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from blink_server.importers.quantize import BLOCK_SIZE, Bits, quantize


def _normal(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, columns), dtype=np.float32)


def _relative_error(original: np.ndarray, held: np.ndarray) -> float:
    return float(np.sqrt(np.square(held - original).sum() / np.square(original).sum()))


DISTRIBUTIONS = {
    "normal": _normal(256, 256),
    "heavy tails": np.random.default_rng(1).laplace(size=(256, 256)).astype(np.float32),
    "off centre": _normal(256, 256) + np.float32(1.5),
}


def test_eight_bits_err_by_half_a_step_at_most() -> None:
    for matrix in DISTRIBUTIONS.values():
        quantized = quantize(matrix, 8)
        error = np.abs(quantized.dequantize() - matrix).reshape(256, -1, BLOCK_SIZE)
        largest = np.abs(matrix).reshape(256, -1, BLOCK_SIZE).max(axis=2)
        assert (error.max(axis=2) <= largest / 127 / 2 * (1 + 1e-5)).all()
        assert np.array_equal(quantized.minimum, -128 * quantized.scale)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_four_bits_err_less_than_the_usual_formats(name: str) -> None:
    matrix = DISTRIBUTIONS[name]
    ours = _relative_error(matrix, quantize(matrix, 4).dequantize())
    for kind in (gguf.GGMLQuantizationType.Q4_0, gguf.GGMLQuantizationType.Q4_1):
        if name == "off centre" and kind.name == "Q4_1":
            continue  # its minimum is free, ours is a whole number of steps from zero
        usual = _relative_error(matrix, gguf.dequantize(gguf.quantize(matrix, kind), kind))
        assert ours < usual
    assert ours < 0.1


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_four_bit_zero_points_are_codes(name: str) -> None:
    quantized = quantize(DISTRIBUTIONS[name], 4)
    zero = np.rint(-quantized.minimum / quantized.scale)
    assert np.array_equal(-zero.astype(np.float32) * quantized.scale, quantized.minimum)
    assert zero.min() >= 0
    assert zero.max() <= 15
    assert quantized.codes.max() == 15
    assert quantized.codes.min() == 0


@pytest.mark.parametrize("bits", [4, 8])
def test_values_on_a_grid_are_kept_exactly(bits: Bits) -> None:
    steps = np.random.default_rng(0).integers(-8, 8, (4, 64))
    steps[:, ::32] = -8
    matrix = (steps * 0.125).astype(np.float32)
    # 127 steps to the largest: eight bits hold this grid only to half a step of theirs.
    tolerance = 0.0 if bits == 4 else 1.0 / 127 / 2
    assert np.abs(quantize(matrix, bits).dequantize() - matrix).max() <= tolerance + 1e-7


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("value", [0.0, 1.0, -0.3, 1e-30, -1e30, 1e-40])
def test_blocks_of_one_value_are_kept(bits: Bits, value: float) -> None:
    matrix = np.full((2, 64), value, np.float32)
    matrix[1, 32:] = 0
    held = quantize(matrix, bits).dequantize()
    assert np.isfinite(held).all()
    assert np.allclose(held, matrix, rtol=1e-5, atol=1e-33)


def test_one_block_does_not_see_the_others() -> None:
    matrix = _normal(4, 128)
    other = matrix.copy()
    other[2, 32:64] *= 100
    ours, theirs = quantize(matrix, 4), quantize(other, 4)
    same = np.ones(128, bool)
    same[32:64] = False
    assert np.array_equal(ours.dequantize()[:, same], theirs.dequantize()[:, same])
    assert np.array_equal(ours.dequantize()[[0, 1, 3]], theirs.dequantize()[[0, 1, 3]])


@pytest.mark.parametrize("bits", [4, 8])
def test_large_matrices_are_worked_through_in_parts_alike(
    bits: Bits, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = _normal(37, 64)
    whole = quantize(matrix, bits)
    monkeypatch.setattr("blink_server.importers.quantize._WEIGHTS_AT_ONCE", 5 * 64)
    parts = quantize(matrix, bits)
    for name in ("codes", "scale", "minimum"):
        assert np.array_equal(getattr(whole, name), getattr(parts, name))
