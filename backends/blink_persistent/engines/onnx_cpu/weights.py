"""How a decoder's weight matrices become graph nodes: as quantized blocks or as float32.

Both kinds read the same checkpoint tensors; the graph does not know which one it is built with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from blink_persistent.engines.onnx_cpu import repack
from blink_persistent.engines.onnx_cpu.nodes import CONTRIB, GraphWriter
from blink_persistent.engines.onnx_cpu.repack import BlockMatrix
from blink_server.importers.checkpoint import Checkpoint, QuantizedTensor

# MatMulNBits' "int8": activations are quantised by block too, which its fast kernels need.
_INT8_ACTIVATIONS = 4


class Weights(Protocol):
    """Writes products with a checkpoint's matrices [out_features, in_features] into a graph."""

    def embed(self, tensor: str, token_ids: str, name: str) -> str:
        """Rows of a matrix: int32 [batch, tokens] -> float32 [batch, tokens, in_features]."""
        ...

    def project(self, tensors: Sequence[str], x: str, name: str, *, spiky: bool = False) -> str:
        """x times the matrices' transposes, side by side: [..., in] -> [..., sum of out].

        `spiky` says that few features of x are far larger than their neighbours.
        """
        ...

    def summary(self) -> str:
        """One line for the user: how the matrices written so far are held, and how exactly."""
        ...


class Int8Weights:
    """Quantized matrices as 4- or 8-bit blocks for int8 arithmetic, see `repack`.

    A float matrix stays one, and so do quantized ones that are multiplied together with it.
    """

    def __init__(self, checkpoint: Checkpoint, graph: GraphWriter) -> None:
        self._checkpoint = checkpoint
        self._graph = graph
        self._floats = FloatWeights(checkpoint, graph)
        self._embedded: set[str] = set()
        self._held: dict[str, _Held] = {}

    def embed(self, tensor: str, token_ids: str, name: str) -> str:
        self._embedded.add(tensor)
        matrix = self._load(tensor)
        self._held[tensor] = _Held.of(matrix)
        if matrix is None:
            return self._floats.embed(tensor, token_ids, name)
        # The rows stay split in blocks, so that a tied head can share the codes: they are most
        # of a small model's file.
        inputs = [
            self._graph.constant(f"{tensor}.codes", matrix.codes),
            token_ids,
            self._graph.constant(f"{tensor}.block_scales", matrix.scales[:, :, None]),
        ]
        if matrix.zero_points is not None:
            zero_points = matrix.zero_points[:, :, None]
            inputs.append(self._graph.constant(f"{tensor}.block_zero_points", zero_points))
        blocks = self._graph.add(
            "GatherBlockQuantized",
            inputs,
            f"{name}_blocks",
            domain=CONTRIB,
            bits=8,
            block_size=matrix.block_size,
            gather_axis=0,
            quantize_axis=2,
        )
        flat = self._graph.constant("shape.flat_blocks", np.array([0, 0, -1], np.int64))
        return self._graph.add("Reshape", [blocks, flat], name)

    def project(self, tensors: Sequence[str], x: str, name: str, *, spiky: bool = False) -> str:
        loaded = [self._load(tensor) for tensor in tensors]
        matrices = [matrix for matrix in loaded if matrix is not None]
        if len(matrices) < len(tensors):
            self._held |= dict.fromkeys(tensors, _Held.of(None))
            return self._floats.project(tensors, x, name, spiky=spiky)
        # The kernel quantises x in the weights' blocks; in small ones a spike spoils less.
        largest = repack.FINEST_BLOCK_SIZE if spiky else None
        matrix = repack.concatenate(matrices, largest_block_size=largest)
        for tensor, part in zip(tensors, matrices, strict=True):
            self._held[tensor] = _Held(f"{matrix.bits}-bit blocks", part.worst_error)
        label = "+".join(tensors)
        inputs = [
            x,
            self._graph.constant(f"{label}.codes", matrix.packed_codes()),
            self._graph.constant(f"{label}.scales", matrix.scales),
        ]
        if (zero_points := matrix.packed_zero_points()) is not None:
            inputs.append(self._graph.constant(f"{label}.zero_points", zero_points))
        rows, columns = matrix.shape
        return self._graph.add(
            "MatMulNBits",
            inputs,
            name,
            domain=CONTRIB,
            N=rows,
            K=columns,
            bits=matrix.bits,
            block_size=matrix.block_size,
            accuracy_level=_INT8_ACTIVATIONS,
        )

    def summary(self) -> str:
        kinds = Counter(held.kind for held in self._held.values())
        counts = ", ".join(f"{count} as {kind}" for kind, count in kinds.items())
        errors = [held.worst_error for held in self._held.values()]
        if not any(errors):
            return f"holds matrices exactly: {counts}"
        return (
            f"holds matrices: {counts}; {errors.count(0.0)} of them exactly, in the others no "
            f"weight is off by more than {max(errors):.2%} of the largest its block can hold"
        )

    def _load(self, name: str) -> BlockMatrix | None:
        """The matrix in blocks, or None for one of floats."""
        tensor = self._checkpoint.tensor(name)
        if not isinstance(tensor, QuantizedTensor):
            return None
        matrix = repack.repack(tensor)
        return matrix.widened() if name in self._embedded else matrix


class _Held(NamedTuple):
    """How a matrix is held, and its `BlockMatrix.worst_error`."""

    kind: str
    worst_error: float

    @classmethod
    def of(cls, matrix: BlockMatrix | None) -> _Held:
        if matrix is None:
            return cls("float32", 0.0)
        return cls(f"{matrix.bits}-bit blocks", matrix.worst_error)


class FloatWeights:
    """float32 matrices: the checkpoint's own values."""

    def __init__(self, checkpoint: Checkpoint, graph: GraphWriter) -> None:
        self._checkpoint = checkpoint
        self._graph = graph

    def embed(self, tensor: str, token_ids: str, name: str) -> str:
        table = self._graph.constant(tensor, self._load(tensor))
        return self._graph.add("Gather", [table, token_ids], name, axis=0)

    def project(self, tensors: Sequence[str], x: str, name: str, *, spiky: bool = False) -> str:
        matrix = np.concatenate([self._load(tensor) for tensor in tensors])
        label = "+".join(tensors)
        transposed = self._graph.constant(f"{label}.T", np.ascontiguousarray(matrix.T))
        return self._graph.add("MatMul", [x, transposed], name)

    def summary(self) -> str:
        return "holds matrices exactly, as float32"

    def _load(self, name: str) -> npt.NDArray[np.float32]:
        tensor = self._checkpoint.tensor(name)
        values = tensor.dequantize() if isinstance(tensor, QuantizedTensor) else tensor
        return values.astype(np.float32, copy=False)
