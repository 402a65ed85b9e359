"""Weight matrices as the 4- or 8-bit blocks that ONNX Runtime's int8 kernels multiply.

A block is `(code - zero_point) * scale` with whole zero points. A checkpoint's block `d * q + m`
has the zero point `z = -m / d`. Where that is whole it is held as it is, in 4 bits if its codes
have 4. Elsewhere rounding it would ruin the model; with 8 bits there is room to stretch 4-bit
codes by a whole factor k, so that `k * z` may be chosen near a whole number: the codes stay exact
and the zero point is off by 0.004 steps on average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from blink_server.importers.checkpoint import QuantizedTensor

BLOCK_SIZE = 32  # along a row, where a checkpoint has no other
FINEST_BLOCK_SIZE = 16  # the smallest that the kernels take
_CODES = 255  # largest 8-bit code


@dataclass(frozen=True, slots=True)
class BlockMatrix:
    """A matrix [rows, columns] as blocks: w = (code - zero_point) * scale.

    codes: uint8 [rows, blocks, block_size], below 2**bits. scales: float32 [rows, blocks].
    zero_points: uint8 [rows, blocks], or None where all are the middle, 2**(bits - 1).
    worst_error: how far a weight is from the checkpoint's at most, as a share of the largest
    that its block can hold.
    """

    codes: npt.NDArray[np.uint8]
    scales: npt.NDArray[np.float32]
    zero_points: npt.NDArray[np.uint8] | None
    bits: int = 8
    worst_error: float = 0.0

    @property
    def shape(self) -> tuple[int, int]:
        rows, blocks, block_size = self.codes.shape
        return rows, blocks * block_size

    @property
    def block_size(self) -> int:
        return int(self.codes.shape[2])

    def dequantize(self) -> npt.NDArray[np.float32]:
        """The matrix as float32 [rows, columns]."""
        zero = self.explicit_zero_points().astype(np.float32)[:, :, None]
        centred = self.codes.astype(np.float32) - zero
        return (centred * self.scales[:, :, None]).reshape(self.shape)

    def explicit_zero_points(self) -> npt.NDArray[np.uint8]:
        """The zero points, uint8 [rows, blocks], also where all are the middle."""
        if self.zero_points is not None:
            return self.zero_points
        return np.full(self.scales.shape, 1 << self.bits - 1, np.uint8)

    def widened(self) -> BlockMatrix:
        """The same values with 8-bit codes."""
        if self.bits == 8:
            return self
        zero_points = self.explicit_zero_points()
        return BlockMatrix(self.codes, self.scales, zero_points, 8, self.worst_error)

    def packed_codes(self) -> npt.NDArray[np.uint8]:
        """Codes as the operators take them: [rows, blocks, block_size * bits / 8]."""
        return self.codes if self.bits == 8 else _pack(self.codes)

    def packed_zero_points(self) -> npt.NDArray[np.uint8] | None:
        """Zero points as the operators take them: [rows, blocks * bits / 8, rounded up]."""
        if self.zero_points is None or self.bits == 8:
            return self.zero_points
        odd = self.zero_points.shape[1] % 2
        return _pack(np.pad(self.zero_points, ((0, 0), (0, odd))))


def repack(tensor: QuantizedTensor) -> BlockMatrix:
    """Quantised weights of up to 8 bits as blocks of the same size.

    Codes are kept exactly (times k). Blocks whose zero point lies so far outside the codes that
    no k fits into 8 bits, or whose scale is zero, are quantised again from their values.
    """
    rows, columns = tensor.shape
    blocks = columns // tensor.block_size
    codes = tensor.codes.reshape(rows, blocks, tensor.block_size)
    top = (1 << tensor.bits) - 1
    with np.errstate(divide="ignore", invalid="ignore"):
        zero = -tensor.minimum.astype(np.float64) / tensor.scale
        # A block of zeros is zero around any point; around the middle it needs no zero points.
        zero[(tensor.scale == 0) & (tensor.minimum == 0)] = 1 << tensor.bits - 1
        if tensor.bits == 4 and _are_codes(np.rint(zero), tensor, top):
            return _made(codes, tensor.scale, np.rint(zero).astype(np.uint8), 4)
        factor = _best_factor(zero, top)
    fits = factor > 0
    stretched_zero = np.rint(np.where(fits, zero, 0) * factor).astype(np.int16)
    offset = np.maximum(0, -stretched_zero)

    stretched = codes * factor.astype(np.uint8)[:, :, None]
    stretched += offset.astype(np.uint8)[:, :, None]
    scales = np.asarray(tensor.scale / np.maximum(factor, 1), np.float32)
    zero_points = (stretched_zero + offset).astype(np.uint8)
    moved = np.where(fits, zero, 0) - stretched_zero / np.maximum(factor, 1)
    # In steps of the checkpoint's scale; so is the largest weight that a block can hold.
    largest = np.maximum(np.abs(zero), np.abs(top - zero))
    worst = float(np.max(np.abs(moved) / largest, where=fits, initial=0.0))
    if not fits.all():
        values = (
            codes[~fits] * tensor.scale[~fits][:, None] + tensor.minimum[~fits][:, None]
        ).astype(np.float32)
        stretched[~fits], scales[~fits], zero_points[~fits] = _quantize_blocks(values)
        worst = max(worst, 0.5 / _CODES)
    return _made(stretched, scales, zero_points, 8, worst)


def _are_codes(zero: npt.NDArray[np.float64], tensor: QuantizedTensor, top: int) -> bool:
    """Whether these whole zero points are codes and stand for the very minima of the blocks."""
    same = -zero.astype(np.float32) * tensor.scale == tensor.minimum
    return bool((same & (zero >= 0) & (zero <= top)).all())


def _made(
    codes: npt.NDArray[np.uint8],
    scales: npt.NDArray[np.float32],
    zero_points: npt.NDArray[np.uint8],
    bits: int,
    worst_error: float = 0.0,
) -> BlockMatrix:
    """The matrix, its zero points left out where all are the middle."""
    symmetric = bool((zero_points == 1 << bits - 1).all())
    return BlockMatrix(codes, scales, None if symmetric else zero_points, bits, worst_error)


def _pack(codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """4-bit codes [..., 2 n] as bytes [..., n], the first of each pair in the low half."""
    return codes[..., 0::2] | codes[..., 1::2] << np.uint8(4)


def _best_factor(zero: npt.NDArray[np.float64], top: int) -> npt.NDArray[np.int16]:
    """The k for which k * zero is nearest to a whole number, per block; 0 where none fits.

    It fits when codes 0..top times k and the zero point span at most 8 bits together.
    """
    best = np.zeros(zero.shape, np.int16)
    best_error = np.full(zero.shape, np.inf)
    for k in range(1, _CODES // top + 1):
        stretched = np.rint(k * zero)
        span = np.maximum(k * top, stretched) - np.minimum(0, stretched)
        # The zero point's error counts in units of the scale, which is divided by k.
        error = np.abs(k * zero - stretched) / k
        better = (span <= _CODES) & (error < best_error)
        best[better] = k
        best_error[better] = error[better]
    return best


def _quantize_blocks(
    values: npt.NDArray[np.float32],
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32], npt.NDArray[np.uint8]]:
    """Codes, scales and zero points of float blocks [n, block_size], each with its own range."""
    low = np.minimum(values.min(axis=1), 0)
    scale = (np.maximum(values.max(axis=1), 0) - low) / np.float32(_CODES)
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
    zero = np.rint(-low * inverse)
    codes = np.clip(np.rint(values * inverse[:, None]) + zero[:, None], 0, _CODES)
    return codes.astype(np.uint8), np.asarray(scale, np.float32), zero.astype(np.uint8)


def concatenate(
    matrices: Sequence[BlockMatrix], *, largest_block_size: int | None = None
) -> BlockMatrix:
    """Matrices of equal width, one below the other, in the widest codes and smallest blocks.

    With `largest_block_size` the blocks are cut to that at most; the values stay the same.
    """
    if len({matrix.bits for matrix in matrices}) > 1:
        matrices = [matrix.widened() for matrix in matrices]
    sizes = [matrix.block_size for matrix in matrices]
    block_size = min(sizes if largest_block_size is None else [*sizes, largest_block_size])
    parts = [_split_blocks(matrix, block_size) for matrix in matrices]
    symmetric = all(part.zero_points is None for part in parts)
    return BlockMatrix(
        np.concatenate([part.codes for part in parts]),
        np.concatenate([part.scales for part in parts]),
        None if symmetric else np.concatenate([part.explicit_zero_points() for part in parts]),
        parts[0].bits,
        max(part.worst_error for part in parts),
    )


def _split_blocks(matrix: BlockMatrix, block_size: int) -> BlockMatrix:
    pieces = matrix.block_size // block_size
    if pieces == 1:
        return matrix
    zero_points = matrix.zero_points
    return replace(
        matrix,
        codes=matrix.codes.reshape(len(matrix.codes), -1, block_size),
        scales=np.repeat(matrix.scales, pieces, axis=1),
        zero_points=None if zero_points is None else np.repeat(zero_points, pieces, axis=1),
    )
