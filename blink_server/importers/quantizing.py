"""A checkpoint whose float matrices are quantized as they are read, and the error that costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from blink_server.importers.checkpoint import (
    Architecture,
    Checkpoint,
    QuantizedTensor,
    Tensor,
)
from blink_server.importers.quantize import BLOCK_SIZE, Bits, quantize

TOKEN_TABLES = ("model.embed_tokens.weight", "lm_head.weight")

_ROWS_AT_ONCE = 1024


class MatrixError(NamedTuple):
    """What quantization did to one matrix: sums of squares, and the worst of all weights.

    `worst` is a weight's error as a share of the largest weight of its block.
    """

    squares: float
    error_squares: float
    worst: float


@dataclass(slots=True)
class QuantizingCheckpoint:
    """Float matrices come as blocks of `bits` bits, everything else as `original` has it.

    With 4 bits the token tables get 8: they suffer most and gain least. A matrix that cannot be
    cut into whole blocks stays as it is.
    """

    original: Checkpoint
    bits: Bits
    errors: dict[str, MatrixError] = field(default_factory=dict)  # of the matrices read so far

    @property
    def architecture(self) -> Architecture:
        return self.original.architecture

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self.original.eos_token_ids

    @property
    def bos_token_id(self) -> int | None:
        return self.original.bos_token_id

    @property
    def tokenizer_json(self) -> str:
        return self.original.tokenizer_json

    @property
    def chat_template(self) -> str | None:
        return self.original.chat_template

    @property
    def source(self) -> Mapping[str, Any]:
        """The original's, and what became of its float matrices, once they have been read."""
        became = {"quantized_to_bits": self.bits} if self.errors else {}
        return {**self.original.source, **became}

    def tensor_names(self) -> list[str]:
        return self.original.tensor_names()

    def tensor(self, name: str) -> Tensor:
        """The tensor of a canonical name. Raises what `original` raises."""
        tensor = self.original.tensor(name)
        if isinstance(tensor, QuantizedTensor) or tensor.ndim < 2 or tensor.shape[1] % BLOCK_SIZE:
            return tensor
        quantized = quantize(tensor, 8 if name in TOKEN_TABLES else self.bits)
        self.errors[name] = matrix_error(tensor, quantized)
        return quantized

    def summary(self) -> list[str]:
        """What the import says of the matrices read so far; nothing where none was quantized."""
        if not self.errors:
            return []
        squares = sum(error.squares for error in self.errors.values())
        off = sum(error.error_squares for error in self.errors.values())
        share = np.sqrt(off / squares) if squares else 0.0
        worst_name = max(self.errors, key=lambda name: self.errors[name].worst)
        worst = self.errors[worst_name].worst
        kinds = "int8" if self.bits == 8 else "int4 (token tables to int8)"
        return [
            f"quantized {len(self.errors)} float matrices to {kinds}: "
            f"error {share:.2%} of the weights (root mean square), "
            f"at most {worst:.1%} of a block's largest weight (in {worst_name})"
        ]


def matrix_error(original: npt.NDArray[np.float32], quantized: QuantizedTensor) -> MatrixError:
    """The error of a matrix [rows, columns] that was quantized."""
    squares = error_squares = worst = 0.0
    for start in range(0, len(original), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        scale, minimum = quantized.scale[part], quantized.minimum[part]
        held = QuantizedTensor(
            quantized.bits, quantized.block_size, quantized.codes[part], scale, minimum
        ).dequantize()
        exact = original[part].reshape(*scale.shape, quantized.block_size)
        error = np.abs(held.reshape(exact.shape) - exact)
        squares += float(np.square(exact, dtype=np.float64).sum())
        error_squares += float(np.square(error, dtype=np.float64).sum())
        largest = np.abs(exact).max(axis=2)
        share = error.max(axis=2) / np.where(largest > 0, largest, 1)
        worst = max(worst, float(share.max()))
    return MatrixError(squares, error_squares, worst)
