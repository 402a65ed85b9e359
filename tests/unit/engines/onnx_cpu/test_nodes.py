"""The graph writer and the files it leaves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto

from blink_persistent.engines.onnx_cpu import nodes
from blink_persistent.engines.onnx_cpu.nodes import GraphWriter


def _doubling() -> ModelProto:
    graph = GraphWriter("double")
    graph.input("x", TensorProto.FLOAT, ["n", 512])
    two = graph.constant("two", np.full(512, 2, np.float32))
    graph.output(graph.add("Mul", ["x", two], "y"), TensorProto.FLOAT, ["n", 512])
    return graph.finish({"author": "test"})


def _double(path: Path) -> np.ndarray:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert session.get_modelmeta().custom_metadata_map == {"author": "test"}
    return session.run(["y"], {"x": np.ones((1, 512), np.float32)})[0]


def test_a_model_is_one_file(tmp_path: Path):
    path = tmp_path / "model.onnx"
    assert nodes.save(_doubling(), path) == ["model.onnx"]
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]
    assert (_double(path) == 2).all()


def test_what_passes_protobufs_limit_keeps_its_weights_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(nodes, "_LARGEST_MESSAGE", 1000)
    path = tmp_path / "model.onnx"
    assert nodes.save(_doubling(), path) == ["model.onnx", "model.onnx.data"]
    assert (tmp_path / "model.onnx.data").stat().st_size >= 2048
    assert path.stat().st_size < 1000
    assert (_double(path) == 2).all()


def test_a_constant_is_stored_once():
    graph = GraphWriter("test")
    assert graph.constant("c", np.zeros(2)) == graph.constant("c", np.zeros(2)) == "c"
    assert len(graph.finish({}).graph.initializer) == 1


def test_two_nodes_cannot_make_one_value():
    graph = GraphWriter("test")
    graph.scope("layer")
    assert graph.add("Neg", ["x"], "y") == "layer/y"
    with pytest.raises(ValueError, match="layer/y"):
        graph.add("Abs", ["x"], "y")
