"""Float matrices as 4- or 8-bit blocks, chosen for the least error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from blink_server.importers.checkpoint import QuantizedTensor

Bits = Literal[4, 8]
BLOCK_SIZE = 32
Floats = npt.NDArray[np.float32]

# What share of a block's range its codes are stretched over: a narrower one cuts off the
# outermost weights and holds the many others more finely.
_RANGES = (1.0, 0.92, 0.84)
_SMALLEST_DIVISOR = np.float32(1e-35)
_TOP = 15  # largest 4-bit code
_WEIGHTS_AT_ONCE = 1 << 18  # temporary arrays that stay in a core's cache


def quantize(matrix: npt.NDArray[np.float32], bits: Bits) -> QuantizedTensor:
    """A matrix, float32 [rows, columns], in blocks of `BLOCK_SIZE`, which divides `columns`.

    8 bits: around zero, the largest weight of a block +-127 steps, every error half a step at
    most. 4 bits: with a whole zero point, so that int8 kernels hold the blocks exactly; of
    several ranges for the codes a block takes the one with the least squared error, its scale
    fitted to the codes.
    """
    rows, columns = matrix.shape
    codes = np.empty((rows, columns), np.uint8)
    scale, minimum = (np.empty((rows, columns // BLOCK_SIZE), np.float32) for _ in range(2))
    quantize_blocks = _quantize_4bit if bits == 4 else _quantize_8bit
    rows_at_once = max(1, _WEIGHTS_AT_ONCE // columns)
    for start in range(0, rows, rows_at_once):
        part = slice(start, start + rows_at_once)
        blocks = matrix[part].reshape(-1, columns // BLOCK_SIZE, BLOCK_SIZE)
        found, scale[part], zero = quantize_blocks(blocks)
        codes[part] = found.reshape(-1, columns)
        minimum[part] = -zero * scale[part]
    return QuantizedTensor(bits, BLOCK_SIZE, codes, scale, minimum)


def _quantize_8bit(blocks: Floats) -> tuple[Floats, Floats, Floats]:
    """Codes, and scales and zero points, of blocks [rows, blocks, BLOCK_SIZE]."""
    scale = np.asarray(np.abs(blocks).max(axis=2) / np.float32(127), np.float32)
    zero = np.full_like(scale, 128)
    return np.rint(_divide(blocks, scale[:, :, None])) + zero[:, :, None], scale, zero


def _quantize_4bit(blocks: Floats) -> tuple[Floats, Floats, Floats]:
    """As `_quantize_8bit`."""
    least = np.minimum(blocks.min(axis=2), 0)
    largest = np.maximum(blocks.max(axis=2), 0)
    best = _Fit.of(blocks, *_grid(least, largest))
    for share in _RANGES[1:]:
        best.improve(blocks, *_grid(least * np.float32(share), largest * np.float32(share)))
    # Zero in the middle and the scale's sign free: the outermost weight is the outermost code.
    outermost = np.where(largest > -least, largest, least)
    for share in _RANGES:
        scale = outermost * np.float32(-share / 8)
        best.improve(blocks, scale, np.full_like(scale, 8))
    return best.codes, best.scale, best.zero


@dataclass(slots=True)
class _Fit:
    """The best codes so far of blocks [rows, blocks, BLOCK_SIZE]; all arrays float32."""

    codes: Floats
    scale: Floats  # this and the next two: [rows, blocks]
    zero: Floats
    error: Floats  # sum of squares

    @classmethod
    def of(
        cls,
        blocks: Floats,
        scale: Floats,
        zero: Floats,
    ) -> _Fit:
        """Codes on a grid, then the scale that suits them best."""
        codes = np.rint(_divide(blocks, scale[:, :, None]))
        codes += zero[:, :, None]
        np.clip(codes, 0, _TOP, out=codes)
        steps = codes - zero[:, :, None]
        fitted = _divide((blocks * steps).sum(axis=2), (steps * steps).sum(axis=2))
        steps *= fitted[:, :, None]
        steps -= blocks
        return cls(codes, fitted, zero, (steps * steps).sum(axis=2))

    def improve(
        self,
        blocks: Floats,
        scale: Floats,
        zero: Floats,
    ) -> None:
        """Take another grid for the blocks that it suits better."""
        other = _Fit.of(blocks, scale, zero)
        better = other.error < self.error
        self.codes[better] = other.codes[better]
        for name in ("scale", "zero", "error"):
            np.copyto(getattr(self, name), getattr(other, name), where=better)


def _grid(least: Floats, largest: Floats) -> tuple[Floats, Floats]:
    """Scale and whole zero point of codes from `least` <= 0 to `largest` >= 0."""
    scale = (largest - least) / np.float32(_TOP)
    return scale, np.rint(_divide(-least, scale))


def _divide(dividend: Floats, divisor: Floats) -> Floats:
    """The quotient, and 0 where the divisor is nothing, or so small that its inverse is not."""
    usable = np.abs(divisor) > _SMALLEST_DIVISOR
    inverse = np.divide(1, divisor, out=np.zeros_like(divisor), where=usable)
    return np.asarray(dividend * inverse, np.float32)
