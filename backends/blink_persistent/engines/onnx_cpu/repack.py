"""Weight matrices as the 8-bit blocks that ONNX Runtime's int8 kernels multiply.

A block is `(code - zero_point) * scale` with whole zero points. A checkpoint's 4-bit block
`d * q + m` has the zero point `z = -m / d`, which is not whole; rounding it ruins the model.
With 8 bits there is room to stretch the codes by a whole factor k, so that `k * z` may be chosen
near a whole number: the codes stay exact and the zero point is off by 0.004 steps on average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blink_server.importers.checkpoint import QuantizedTensor

BLOCK_SIZE = 32  # along a row; what float matrices are quantised to
FINEST_BLOCK_SIZE = 16  # the smallest that the kernels take
SYMMETRIC_ZERO_POINT = 128  # the operators' default where a matrix carries no zero points
_CODES = 255  # largest 8-bit code


@dataclass(frozen=True, slots=True)
class BlockMatrix:
    """A matrix [rows, columns] as 8-bit blocks: w = (code - zero_point) * scale.

    codes: uint8 [rows, blocks, block_size]. scales: float32 [rows, blocks].
    zero_points: uint8 [rows, blocks], or None where all are `SYMMETRIC_ZERO_POINT`.
    """

    codes: npt.NDArray[np.uint8]
    scales: npt.NDArray[np.float32]
    zero_points: npt.NDArray[np.uint8] | None

    @property
    def shape(self) -> tuple[int, int]:
        rows, blocks, block_size = self.codes.shape
        return rows, blocks * block_size

    @property
    def block_size(self) -> int:
        return int(self.codes.shape[2])

    def dequantize(self) -> npt.NDArray[np.float32]:
        """The matrix as float32 [rows, columns]."""
        zero = SYMMETRIC_ZERO_POINT if self.zero_points is None else self.zero_points[:, :, None]
        centred = self.codes.astype(np.float32) - np.float32(zero)
        return (centred * self.scales[:, :, None]).reshape(self.shape)


def repack(tensor: QuantizedTensor) -> BlockMatrix:
    """Quantised weights of up to 8 bits as 8-bit blocks of the same block size.

    Codes are kept exactly (times k). Blocks whose zero point lies so far outside the codes that
    no k fits into 8 bits, or whose scale is zero, are quantised again from their values.
    """
    rows, columns = tensor.shape
    blocks = columns // tensor.block_size
    codes = tensor.codes.reshape(rows, blocks, tensor.block_size)
    top = (1 << tensor.bits) - 1
    with np.errstate(divide="ignore", invalid="ignore"):
        zero = -tensor.minimum.astype(np.float64) / tensor.scale
        factor = _best_factor(zero, top)
    fits = factor > 0
    stretched_zero = np.rint(np.where(fits, zero, 0) * factor).astype(np.int16)
    offset = np.maximum(0, -stretched_zero)

    stretched = codes * factor.astype(np.uint8)[:, :, None]
    stretched += offset.astype(np.uint8)[:, :, None]
    scales = np.asarray(tensor.scale / np.maximum(factor, 1), np.float32)
    zero_points = (stretched_zero + offset).astype(np.uint8)
    if not fits.all():
        values = (
            codes[~fits] * tensor.scale[~fits][:, None] + tensor.minimum[~fits][:, None]
        ).astype(np.float32)
        stretched[~fits], scales[~fits], zero_points[~fits] = _quantize_blocks(values)
    symmetric = bool((zero_points == SYMMETRIC_ZERO_POINT).all())
    return BlockMatrix(stretched, scales, None if symmetric else zero_points)


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
    return codes.astype(np.uint8), scale, zero.astype(np.uint8)


def quantize(matrix: npt.NDArray[np.float32], *, rows_at_once: int = 4096) -> BlockMatrix:
    """A float matrix [rows, columns] as symmetric 8-bit blocks of `BLOCK_SIZE` columns.

    The largest weight of a block becomes +-127. `columns` is a multiple of `BLOCK_SIZE`. Works
    through `rows_at_once` rows at a time, so that temporary memory stays small.
    """
    rows, columns = matrix.shape
    blocks = columns // BLOCK_SIZE
    codes = np.empty((rows, blocks, BLOCK_SIZE), np.uint8)
    scales = np.empty((rows, blocks), np.float32)
    for start in range(0, rows, rows_at_once):
        part = slice(start, start + rows_at_once)
        values = matrix[part].astype(np.float32, copy=False).reshape(-1, blocks, BLOCK_SIZE)
        scales[part] = np.abs(values).max(axis=2) / np.float32(127)
        inverse = np.divide(
            1, scales[part], out=np.zeros_like(scales[part]), where=scales[part] > 0
        )
        codes[part] = np.rint(values * inverse[:, :, None]) + SYMMETRIC_ZERO_POINT
    return BlockMatrix(codes, scales, None)


def concatenate(
    matrices: Sequence[BlockMatrix], *, largest_block_size: int | None = None
) -> BlockMatrix:
    """Matrices of equal width, one below the other, in the smallest block size among them.

    With `largest_block_size` the blocks are cut to that at most; the values stay the same.
    """
    sizes = [matrix.block_size for matrix in matrices]
    block_size = min(sizes if largest_block_size is None else [*sizes, largest_block_size])
    parts = [_split_blocks(matrix, block_size) for matrix in matrices]
    symmetric = all(part.zero_points is None for part in parts)
    return BlockMatrix(
        np.concatenate([part.codes for part in parts]),
        np.concatenate([part.scales for part in parts]),
        None if symmetric else np.concatenate([_zero_points(part) for part in parts]),
    )


def _split_blocks(matrix: BlockMatrix, block_size: int) -> BlockMatrix:
    pieces = matrix.block_size // block_size
    if pieces == 1:
        return matrix
    zero_points = matrix.zero_points
    return BlockMatrix(
        matrix.codes.reshape(len(matrix.codes), -1, block_size),
        np.repeat(matrix.scales, pieces, axis=1),
        None if zero_points is None else np.repeat(zero_points, pieces, axis=1),
    )


def _zero_points(matrix: BlockMatrix) -> npt.NDArray[np.uint8]:
    if matrix.zero_points is not None:
        return matrix.zero_points
    return np.full(matrix.scales.shape, SYMMETRIC_ZERO_POINT, np.uint8)
