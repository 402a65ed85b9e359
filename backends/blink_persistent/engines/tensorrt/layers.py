"""Layers of a TensorRT network: what a decoder is made of, over one strongly typed network.

The module (`tensorrt` or `tensorrt_rtx`) is passed in. Activations have the weights' type; norms,
rotation and the residual stream are float32, as in the engine `cuda`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import ml_dtypes
import numpy as np
import numpy.typing as npt

from blink_persistent.engines.tensorrt.trt_types import DataType, Network, Tensor, Trt
from blink_server.errors import EngineFailure

Array = npt.NDArray[Any]


class Layer(Protocol):
    """What layers, and an attention of several, have in common."""

    name: str

    @property
    def num_outputs(self) -> int: ...

    def get_output(self, index: int, /) -> Tensor: ...


L = TypeVar("L", bound=Layer)


class Layers:
    """Adds layers to one network and returns their outputs; they are named by their place.

    `held` is the memory that the network's constants point to until a plan was built.
    """

    def __init__(self, trt: Trt, network: Network) -> None:
        self.trt = trt
        self.network = network
        self.held: list[Array] = []
        self._scope = ""
        self._scalars: dict[tuple[float, str, int], Tensor] = {}
        self._types = {
            np.dtype(ml_dtypes.bfloat16): trt.DataType.BF16,
            np.dtype(np.float32): trt.DataType.FLOAT,
            np.dtype(np.int32): trt.DataType.INT32,
            np.dtype(np.int64): trt.DataType.INT64,
        }

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Name the layers added inside `name`/..."""
        outer, self._scope = self._scope, f"{name}/"
        yield
        self._scope = outer

    def named(self, layer: L, name: str) -> L:
        """The layer, it and its outputs under its name.

        Raises EngineFailure where the module refused to add it; its logger was told why.
        """
        full = f"{self._scope}{name}"
        if layer is None:
            raise EngineFailure(f"TensorRT refused to add the layer {full!r}")
        layer.name = full
        for index in range(layer.num_outputs):
            layer.get_output(index).name = f"{full}.{index}" if index else full
        return layer

    def output(self, layer: Layer, name: str) -> Tensor:
        """The first output of a layer that is given its name."""
        return self.named(layer, name).get_output(0)

    def constant(self, name: str, values: Array) -> Tensor:
        """Values as they lie in memory, without a copy."""
        self.held.append(values)
        weights = self.trt.Weights(self.type_of(values.dtype), values.ctypes.data, values.size)
        return self.output(self.network.add_constant(values.shape, weights), name)

    def numpy_type(self, x: Tensor) -> np.dtype[Any]:
        """The numpy type of a tensor."""
        return next(ours for ours, theirs in self._types.items() if theirs == x.dtype)

    def type_of(self, dtype: Any) -> DataType:
        """The module's name of a numpy type."""
        return self._types[np.dtype(dtype)]

    def scalar(self, value: float, dtype: Any, rank: int) -> Tensor:
        """One number of a numpy type in `rank` dimensions; one constant for all who ask for it."""
        key = (value, np.dtype(dtype).name, rank)
        if key not in self._scalars:
            with self.scope("scalars"):
                name = f"{key[1]}/{value!r}/{rank}"
                self._scalars[key] = self.constant(name, np.full((1,) * rank, value, dtype))
        return self._scalars[key]

    def cast(self, x: Tensor, to: DataType, name: str) -> Tensor:
        """The tensor in a type of the module; itself where it has it."""
        return x if x.dtype == to else self.output(self.network.add_cast(x, to), name)

    def elementwise(self, a: Tensor, b: Tensor, operation: str, name: str) -> Tensor:
        """`operation` is a member's name of ElementWiseOperation; sizes of 1 are broadcast."""
        kind = getattr(self.trt.ElementWiseOperation, operation)
        return self.output(self.network.add_elementwise(a, b, kind), name)

    def select(self, condition: Tensor, a: Tensor, b: Tensor, name: str) -> Tensor:
        """`a` where the condition, of booleans, holds, else `b`; sizes of 1 are broadcast."""
        return self.output(self.network.add_select(condition, a, b), name)

    def unary(self, x: Tensor, operation: str, name: str) -> Tensor:
        """`operation` is a member's name of UnaryOperation."""
        kind = getattr(self.trt.UnaryOperation, operation)
        return self.output(self.network.add_unary(x, kind), name)

    def reduce(self, x: Tensor, operation: str, axis: int, name: str, *, keep: bool) -> Tensor:
        """`operation` is a member's name of ReduceOperation, over one axis."""
        kind = getattr(self.trt.ReduceOperation, operation)
        return self.output(self.network.add_reduce(x, kind, 1 << axis, keep), name)

    def reshape(
        self,
        x: Tensor,
        shape: Sequence[int],
        name: str,
        *,
        first: Sequence[int] | None = None,
        then: Sequence[int] | None = None,
    ) -> Tensor:
        """-1 is the size that remains; `first` and `then` are transpositions before and after."""
        layer = self.network.add_shuffle(x)
        if first is not None:
            layer.first_transpose = tuple(first)
        layer.reshape_dims = tuple(shape)
        if then is not None:
            layer.second_transpose = tuple(then)
        return self.output(layer, name)

    def gather(self, x: Tensor, indices: Tensor, name: str) -> Tensor:
        """Rows of `x` by index."""
        return self.output(self.network.add_gather(x, indices, 0), name)

    def matmul(self, a: Tensor, b: Tensor, name: str, *, transposed: bool = False) -> Tensor:
        """a times b, or b transposed; leading axes are batches."""
        kinds = self.trt.MatrixOperation
        turned = kinds.TRANSPOSE if transposed else kinds.NONE
        return self.output(self.network.add_matrix_multiply(a, kinds.NONE, b, turned), name)

    def split(self, x: Tensor, sizes: Sequence[int], name: str) -> list[Tensor]:
        """Parts of a [tokens, sum of sizes, ...] tensor along its axis 1."""
        rows, rest = self.size(x, 0, f"{name}/rows"), tuple(x.shape)[2:]
        parts, first = [], 0
        for i, size in enumerate(sizes):
            fixed = self.constant(f"{name}/{i}/fixed", np.array((size, *rest), np.int64))
            shape = self.output(self.network.add_concatenation([rows, fixed]), f"{name}/{i}/shape")
            start, steps = (0, first) + (0,) * len(rest), (1,) * len(x.shape)
            layer = self.network.add_slice(x, start, (0, size, *rest), steps)
            layer.set_input(2, shape)
            parts.append(self.output(layer, f"{name}/{i}"))
            first += size
        return parts

    def swiglu(self, gate_up: Tensor, size: int, to: DataType, name: str) -> Tensor:
        """silu(gate) * up, computed in float32, in the type `to`; gate_up: [tokens, 2 * size]."""
        wide = self.cast(gate_up, self.trt.DataType.FLOAT, f"{name}/float")
        gate, up = self.split(wide, (size, size), f"{name}/split")
        kind = self.trt.ActivationType.SIGMOID
        sigmoid = self.output(self.network.add_activation(gate, kind), f"{name}/sigmoid")
        silu = self.elementwise(gate, sigmoid, "PROD", f"{name}/silu")
        return self.cast(self.elementwise(silu, up, "PROD", f"{name}/wide"), to, name)

    def size(self, x: Tensor, axis: int, name: str) -> Tensor:
        """int64 [1]: the size of an axis, known when a step's shapes are set."""
        shape = self.output(self.network.add_shape(x), f"{name}/shape")
        return self.output(self.network.add_slice(shape, (axis,), (1,), (1,)), name)

    def arange(self, size: Tensor, name: str) -> Tensor:
        """int32 [size]: 0, 1, 2 ..., for an int64 [1] of `size` or what is made of it."""
        zero, one = self.scalar(0, np.int32, 0), self.scalar(1, np.int32, 1)
        kind, dtype = self.trt.FillOperation.LINSPACE, self.trt.DataType.INT32
        fill = self.named(self.network.add_fill((1,), kind, dtype), name)
        for index, tensor in enumerate((size, zero, one)):
            fill.set_input(index, tensor)
        return fill.get_output(0)

    def rms_norm(self, x: Tensor, gain: Array, epsilon: float, name: str) -> Tensor:
        """Over the last axis of a float32 tensor, times `gain` [size of it]; float32.

        TensorRT's normalization layer subtracts the mean, so this is made of primitives.
        """
        rank = len(x.shape)
        square = self.elementwise(x, x, "PROD", f"{name}/square")
        mean = self.reduce(square, "AVG", rank - 1, f"{name}/mean", keep=True)
        shifted = self.elementwise(
            mean, self.scalar(epsilon, np.float32, rank), "SUM", f"{name}/shifted"
        )
        root = self.unary(shifted, "SQRT", f"{name}/root")
        normed = self.elementwise(x, root, "DIV", f"{name}/normed")
        gains = self.constant(
            f"{name}/gain", gain.astype(np.float32).reshape((1,) * (rank - 1) + gain.shape)
        )
        return self.elementwise(normed, gains, "PROD", name)
