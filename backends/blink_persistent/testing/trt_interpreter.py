"""Evaluates a TensorRT network in numpy, layer by layer as it was really built.

    outputs = Interpreter(trt, decoder_network).run(inputs)

It reads the layers back from the `INetworkDefinition`, so that what is tested is what a builder
would get. Each tensor has the type and the static sizes that the network says, bfloat16 rounded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from blink_persistent.engines.tensorrt.network import DecoderNetwork
from blink_persistent.testing.trt_operations import OPERATIONS, Operation

Array = npt.NDArray[Any]

_TYPES = {
    "FLOAT": np.float32,
    "BF16": ml_dtypes.bfloat16,
    "INT32": np.int32,
    "INT64": np.int64,
    "BOOL": np.bool_,
}


class Interpreter:
    """One network. `more` adds operations by the name of their LayerType, as in `OPERATIONS`."""

    def __init__(
        self,
        trt: Any,
        decoder: DecoderNetwork,
        more: Mapping[str, tuple[str, Operation]] | None = None,
    ) -> None:
        self._trt = trt
        self._network = decoder.network
        self._held = decoder.held
        self._operations = {**OPERATIONS, **(more or {})}

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """All outputs, by name as the inputs are.

        Raises KeyError for a missing input, NotImplementedError for what no operation computes,
        ValueError for what is not as the network says, IndexError for reads and writes out of
        bounds.
        """
        network = self._network
        given = [network.get_input(i) for i in range(network.num_inputs)]
        values = {tensor.name: self._as_said(tensor, inputs[tensor.name]) for tensor in given}
        constants = iter(self._held)
        for number in range(network.num_layers):
            layer = network.get_layer(number)
            if layer.type == self._trt.LayerType.CONSTANT:
                layer.__class__ = self._trt.IConstantLayer
                results: Sequence[Array] = [_constant(layer, next(constants))]
            else:
                results = self._evaluate(layer, values)
            for index, result in enumerate(results):
                tensor = layer.get_output(index)
                values[tensor.name] = self._as_said(tensor, result)
        outputs = [network.get_output(i).name for i in range(network.num_outputs)]
        return {name: values[name] for name in outputs}

    def _evaluate(self, layer: Any, values: Mapping[str, Array]) -> Sequence[Array]:
        if layer.type.name not in self._operations:
            raise NotImplementedError(f"{layer.name} is of type {layer.type.name}")
        kind, operation = self._operations[layer.type.name]
        layer.__class__ = getattr(self._trt, kind)  # a layer is read back as an ILayer only
        tensors = (layer.get_input(i) for i in range(layer.num_inputs))
        inputs = [_wide(values[tensor.name]) for tensor in tensors if tensor is not None]
        return operation(self._trt, layer, inputs)

    def _as_said(self, tensor: Any, value: Array) -> Array:
        """The value in its tensor's type. Raises ValueError for another shape."""
        said = tuple(tensor.shape)
        if len(said) != value.ndim or any(
            size not in (-1, real) for size, real in zip(said, value.shape, strict=True)
        ):
            raise ValueError(f"{tensor.name} is said to be {said} and is {value.shape}")
        return np.asarray(value.astype(_TYPES[tensor.dtype.name], copy=False))


def _constant(layer: Any, held: Array) -> Array:
    """The layer's values; of bfloat16 ones the module only says how many there are."""
    weights = layer.weights
    same = held.size == weights.size
    if isinstance(weights, np.ndarray):
        same = same and np.array_equal(weights.ravel(), held.ravel())
    if not same:
        raise ValueError(f"{layer.name} does not hold what was given to it")
    return held


def _wide(value: Array) -> Array:
    """bfloat16 as float32, in which its operations are computed."""
    return value.astype(np.float32) if value.dtype == ml_dtypes.bfloat16 else value
