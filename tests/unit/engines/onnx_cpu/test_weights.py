"""The nodes that weights become, run by ONNX Runtime, against their matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto

from blink_persistent.engines.onnx_cpu.nodes import GraphWriter
from blink_persistent.engines.onnx_cpu.weights import FloatWeights, Int8Weights, Weights
from blink_server.importers.checkpoint import QuantizedTensor, Tensor
from blink_server.testing.memory_checkpoint import (
    MemoryCheckpoint,
    quantize,
    tiny_architecture,
)


def _matrix(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, columns), dtype=np.float32)


def _values(tensor: Tensor) -> np.ndarray:
    return tensor.dequantize() if isinstance(tensor, QuantizedTensor) else tensor


def _writer(kind: type[Any], tensors: dict[str, Tensor]) -> tuple[GraphWriter, Weights]:
    graph = GraphWriter("test")
    return graph, kind(MemoryCheckpoint(tiny_architecture(), tensors), graph)


def _run(graph: GraphWriter, result: str, **inputs: np.ndarray) -> np.ndarray:
    graph.output(result, TensorProto.FLOAT, ["a", "b", "c"])
    model = graph.finish({}).SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return session.run([result], inputs)[0]


_TENSORS: dict[str, Any] = {
    "4 bit": lambda: quantize(_matrix(24, 64), 4),
    "4 bit, blocks of 16": lambda: quantize(_matrix(24, 64), 4, block_size=16),
    "4 bit around the middle, negative scales": lambda: QuantizedTensor(
        4,
        32,
        quantize(_matrix(24, 64), 4).codes,
        np.full((24, 2), -0.25, np.float32),
        np.full((24, 2), 2.0, np.float32),
    ),
    "4 bit around zero": lambda: QuantizedTensor(
        4,
        32,
        quantize(_matrix(24, 64), 4).codes,
        np.full((24, 2), 0.25, np.float32),
        np.full((24, 2), -1.75, np.float32),
    ),
    "8 bit": lambda: quantize(_matrix(24, 64), 8, symmetric=True),
    "float": lambda: _matrix(24, 64),
}


@pytest.mark.parametrize("spiky", [False, True])
@pytest.mark.parametrize("name", _TENSORS)
def test_int8_products_err_by_no_more_than_rounding_can_explain(name: str, spiky: bool):
    tensor = _TENSORS[name]()
    other = quantize(_matrix(8, 64, 1), 4)
    graph, weights = _writer(Int8Weights, {"a": tensor, "b": other})
    graph.input("x", TensorProto.FLOAT, ["a", "b", 64])
    x = _matrix(6, 64, 2).reshape(2, 3, 64)
    x[:, :, 5] *= 20
    got = _run(graph, weights.project(["a", "b"], "x", "y", spiky=spiky), x=x)

    exact = np.concatenate([_values(tensor), _values(other)])
    # x is rounded to 1/127 of its block's largest value; weights to half a code (see repack).
    largest = np.abs(x.reshape(2, 3, 4, 16)).max(axis=3)
    if not spiky and name != "4 bit, blocks of 16":
        largest = largest.reshape(2, 3, 2, 2).max(axis=3).repeat(2, axis=2)
    rounding = largest.repeat(16, axis=2) / 127 / 2
    blocks = np.abs(exact).reshape(32, 4, 16).max(axis=2).repeat(16, axis=1)
    worst = rounding @ np.abs(exact).T + (np.abs(x) + rounding) @ (blocks / 100).T
    assert (np.abs(got - x @ exact.T) <= worst).all()
    assert np.corrcoef(got.ravel(), (x @ exact.T).ravel())[0, 1] > 0.999


def test_a_spike_spoils_less_where_blocks_are_small():
    x = _matrix(50, 64, 2)[None]
    x[:, :, 5] *= 50
    tensor = quantize(_matrix(24, 64), 8, symmetric=True)
    error = {}
    for spiky in (False, True):
        graph, weights = _writer(Int8Weights, {"a": tensor})
        graph.input("x", TensorProto.FLOAT, ["a", "b", 64])
        got = _run(graph, weights.project(["a"], "x", "y", spiky=spiky), x=x)
        error[spiky] = np.abs(got - x @ _values(tensor).T).mean()
    assert error[True] < 0.8 * error[False]


@pytest.mark.parametrize("name", _TENSORS)
def test_embeddings_are_the_dequantized_rows(name: str):
    tensor = _TENSORS[name]()
    graph, weights = _writer(Int8Weights, {"table": tensor})
    graph.input("ids", TensorProto.INT32, ["a", "b"])
    ids = np.array([[0, 23, 7], [7, 1, 22]], np.int32)
    got = _run(graph, weights.embed("table", "ids", "y"), ids=ids)
    assert got.shape == (2, 3, 64)
    largest = np.abs(_values(tensor)).max()
    np.testing.assert_allclose(got, _values(tensor)[ids], rtol=0, atol=largest / 100)
    if name.startswith("8"):
        np.testing.assert_allclose(got, _values(tensor)[ids], rtol=0, atol=1e-6)


def test_a_tied_head_shares_the_embeddings_codes():
    graph, weights = _writer(Int8Weights, {"table": quantize(_matrix(24, 64), 8, symmetric=True)})
    graph.input("ids", TensorProto.INT32, ["a", "b"])
    weights.project(["table"], weights.embed("table", "ids", "x"), "y")
    initializers = graph.finish({}).graph.initializer
    large = [tensor.name for tensor in initializers if len(tensor.raw_data) == 24 * 64]
    assert large == ["table.codes"]


def test_float_weights_are_exact():
    tensors: dict[str, Tensor] = {"a": quantize(_matrix(24, 64), 4), "b": _matrix(8, 64, 1)}
    graph, weights = _writer(FloatWeights, tensors)
    graph.input("ids", TensorProto.INT32, ["a", "b"])
    ids = np.array([[3, 1]], np.int32)
    product = weights.project(["a", "b"], weights.embed("a", "ids", "x"), "y")
    exact = _values(tensors["a"])
    expected = exact[ids] @ np.concatenate([exact, _values(tensors["b"])]).T
    np.testing.assert_allclose(_run(graph, product, ids=ids), expected, rtol=1e-5, atol=1e-5)
