"""Repacked weights against the values they stand for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blink_persistent.engines.onnx_cpu import repack
from blink_server.importers.checkpoint import QuantizedTensor
from blink_server.testing.memory_checkpoint import quantize as quantize_to

# The worst zero point is half a code away, of codes stretched by up to 17.
_WORST_STEP = 0.5 / 17


def _random(shape: tuple[int, int], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def _block(scale: float, minimum: float, bits: int = 4) -> QuantizedTensor:
    """One block of 32 columns that holds every 4-bit code."""
    codes = np.tile(np.arange(16, dtype=np.uint8), 2)[None] if bits == 4 else None
    if codes is None:
        codes = np.linspace(0, (1 << bits) - 1, 32).astype(np.uint8)[None]
    return QuantizedTensor(
        bits, 32, codes, np.array([[scale]], np.float32), np.array([[minimum]], np.float32)
    )


def test_four_bit_weights_are_off_by_less_than_a_thirtieth_of_a_step():
    tensor = quantize_to(_random((64, 128)), 4)
    error = np.abs(repack.repack(tensor).dequantize() - tensor.dequantize())
    steps = error.reshape(64, 4, 32) / tensor.scale[:, :, None]
    assert steps.max() < _WORST_STEP + 1e-4
    assert steps.mean() < 0.006


def test_rounded_four_bit_zero_points_would_be_fifty_times_worse():
    """The measure above can tell a good repacking from the obvious one."""
    tensor = quantize_to(_random((64, 128)), 4)
    rounded = np.rint(-tensor.minimum / tensor.scale)
    steps = np.abs(-tensor.minimum / tensor.scale - rounded)
    assert steps.mean() > 0.2


@given(
    scale=st.floats(1e-4, 10) | st.floats(-10, -1e-4),
    zero=st.floats(-15, 30),
)
def test_any_zero_point_near_the_codes_is_kept_to_half_a_stretched_code(scale: float, zero: float):
    tensor = _block(scale, -scale * zero)
    packed = repack.repack(tensor)
    span = max(15.0, zero, 15 - zero)
    worst = 0.5 / (255 // np.ceil(span + 1)) * abs(scale)
    error = np.abs(packed.dequantize() - tensor.dequantize()).max()
    assert error <= worst + 1e-5 * abs(scale) * span


@pytest.mark.parametrize("zero", [0, 3, 8, 15])
@pytest.mark.parametrize("scale", [0.25, -0.25])
def test_whole_zero_points_are_exact(zero: int, scale: float):
    tensor = _block(scale, -scale * zero)
    np.testing.assert_array_equal(repack.repack(tensor).dequantize(), tensor.dequantize())


def test_signed_eight_bit_blocks_need_no_zero_points_and_are_exact():
    tensor = quantize_to(_random((8, 64)), 8, symmetric=True)
    packed = repack.repack(tensor)
    assert packed.zero_points is None
    np.testing.assert_array_equal(packed.codes.reshape(8, 64), tensor.codes)
    np.testing.assert_allclose(packed.dequantize(), tensor.dequantize(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("bits", [5, 6])
def test_codes_of_other_widths_use_the_room_that_is_left(bits: int):
    tensor = quantize_to(_random((8, 64)), bits)
    worst = 0.5 / (255 // ((1 << bits) - 1))
    error = np.abs(repack.repack(tensor).dequantize() - tensor.dequantize())
    assert (error.reshape(8, 2, 32) / tensor.scale[:, :, None]).max() <= worst + 1e-3


@pytest.mark.parametrize(
    ("scale", "minimum"), [(0.0, 0.0), (0.0, 0.75), (0.0, -2.0), (1e-3, 5.0), (1e-3, -5.0)]
)
def test_blocks_whose_zero_point_is_out_of_reach_are_quantised_again(scale: float, minimum: float):
    tensor = _block(scale, minimum)
    largest = abs(minimum) + abs(scale) * 15
    error = np.abs(repack.repack(tensor).dequantize() - tensor.dequantize()).max()
    assert error <= largest / 255 / 2 + 1e-7


def test_one_lost_block_does_not_disturb_its_neighbours():
    tensor = quantize_to(_random((4, 64)), 4)
    before = repack.repack(tensor)
    tensor.scale[2, 1], tensor.minimum[2, 1] = 0.0, 3.0
    after = repack.repack(tensor)
    others = np.ones((4, 2), bool)
    others[2, 1] = False
    np.testing.assert_array_equal(after.codes[others], before.codes[others])
    np.testing.assert_array_equal(after.scales[others], before.scales[others])
    np.testing.assert_allclose(after.dequantize()[2, 32:], 3.0, rtol=1e-6)


@pytest.mark.parametrize("columns", [64, 96])  # an even and an odd number of blocks
def test_whole_four_bit_zero_points_stay_in_four_bits(columns: int):
    zero = np.random.default_rng(1).integers(0, 16, (6, columns // 32))
    scale = np.random.default_rng(2).uniform(-1, 1, zero.shape).astype(np.float32)
    codes = np.random.default_rng(3).integers(0, 16, (6, columns), dtype=np.uint8)
    scale[0, 0] = 0  # a block of zeros
    tensor = QuantizedTensor(4, 32, codes, scale, -zero.astype(np.float32) * scale)
    packed = repack.repack(tensor)
    assert (packed.bits, packed.worst_error) == (4, 0.0)
    np.testing.assert_allclose(packed.dequantize(), tensor.dequantize(), rtol=0, atol=1e-6)
    np.testing.assert_array_equal(packed.widened().dequantize(), packed.dequantize())

    low_and_high = packed.packed_codes()
    assert low_and_high.shape == (6, columns // 32, 16)
    assert low_and_high[3, 1, 2] == codes[3, 32 + 4] + 16 * codes[3, 32 + 5]
    zero_points = packed.packed_zero_points()
    assert zero_points is not None
    assert zero_points.shape == (6, (columns // 32 + 1) // 2)
    assert zero_points[4, 0] == zero[4, 0] + 16 * zero[4, 1]


def test_four_bits_around_the_middle_need_no_zero_points():
    tensor = _block(0.5, -4.0)
    packed = repack.repack(tensor)
    assert (packed.bits, packed.zero_points, packed.packed_zero_points()) == (4, None, None)
    widened = packed.widened()
    assert widened.zero_points is not None
    np.testing.assert_array_equal(widened.dequantize(), tensor.dequantize())


@pytest.mark.parametrize("bits", [4, 5, 6])
def test_the_stated_error_bounds_the_true_one_and_is_not_far_above_it(bits: int):
    tensor = quantize_to(_random((64, 128)), bits)
    packed = repack.repack(tensor)
    top = (1 << bits) - 1
    largest = np.maximum(np.abs(tensor.minimum), np.abs(tensor.minimum + top * tensor.scale))
    error = np.abs(packed.dequantize() - tensor.dequantize()).reshape(64, 4, 32)
    share = (error / largest[:, :, None]).max()
    assert share <= packed.worst_error * (1 + 1e-3) + 1e-6
    assert share > 0.9 * packed.worst_error > 0


def test_matrices_of_different_blocks_are_joined_value_for_value():
    codes = np.arange(64, dtype=np.uint8).reshape(1, 2, 32) % 16
    parts = [
        repack.repack(quantize_to(_random((4, 64), 1), 4, block_size=16)),
        repack.repack(quantize_to(_random((6, 64), 2), 8, symmetric=True)),
        repack.BlockMatrix(codes, np.full((1, 2), 0.5, np.float32), None, bits=4),
    ]
    joined = repack.concatenate(parts)
    assert (joined.shape, joined.block_size, joined.bits) == ((11, 64), 16, 8)
    assert joined.worst_error == parts[0].worst_error > 0
    expected = np.concatenate([part.dequantize() for part in parts])
    np.testing.assert_array_equal(joined.dequantize(), expected)


def test_blocks_are_cut_without_changing_a_value():
    matrix = repack.repack(quantize_to(_random((4, 64)), 4))
    cut = repack.concatenate([matrix], largest_block_size=16)
    assert cut.block_size == 16
    np.testing.assert_array_equal(cut.dequantize(), matrix.dequantize())
