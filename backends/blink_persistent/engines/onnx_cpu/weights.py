"""How a decoder's weight matrices become graph nodes: as int8 blocks or as float32.

Both kinds read the same checkpoint tensors; the graph does not know which one it is built with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

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


class Int8Weights:
    """8-bit blocks: a quarter of the memory traffic, int8 arithmetic. See `repack`."""

    def __init__(self, checkpoint: Checkpoint, graph: GraphWriter) -> None:
        self._checkpoint = checkpoint
        self._graph = graph

    def embed(self, tensor: str, token_ids: str, name: str) -> str:
        matrix = self._load(tensor)
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
        # The kernel quantises x in the weights' blocks; in small ones a spike spoils less.
        matrix = repack.concatenate(
            [self._load(tensor) for tensor in tensors],
            largest_block_size=repack.FINEST_BLOCK_SIZE if spiky else None,
        )
        label = "+".join(tensors)
        inputs = [
            x,
            self._graph.constant(f"{label}.codes", matrix.codes),
            self._graph.constant(f"{label}.scales", matrix.scales),
        ]
        if matrix.zero_points is not None:
            inputs.append(self._graph.constant(f"{label}.zero_points", matrix.zero_points))
        rows, columns = matrix.shape
        return self._graph.add(
            "MatMulNBits",
            inputs,
            name,
            domain=CONTRIB,
            N=rows,
            K=columns,
            bits=8,
            block_size=matrix.block_size,
            accuracy_level=_INT8_ACTIVATIONS,
        )

    def _load(self, name: str) -> BlockMatrix:
        tensor = self._checkpoint.tensor(name)
        return (
            repack.repack(tensor)
            if isinstance(tensor, QuantizedTensor)
            else repack.quantize(tensor)
        )


class FloatWeights:
    """float32 matrices: the checkpoint's own values, for comparison and for `compute: fp32`."""

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

    def _load(self, name: str) -> npt.NDArray[np.float32]:
        tensor = self._checkpoint.tensor(name)
        values = tensor.dequantize() if isinstance(tensor, QuantizedTensor) else tensor
        return values.astype(np.float32, copy=False)
