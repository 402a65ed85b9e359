"""The graph writer."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto

from blink_persistent.engines.onnx_cpu.nodes import GraphWriter


def test_the_model_that_is_finished_runs_and_carries_its_metadata():
    graph = GraphWriter("double")
    graph.input("x", TensorProto.FLOAT, ["n", 512])
    two = graph.constant("two", np.full(512, 2, np.float32))
    graph.output(graph.add("Mul", ["x", two], "y"), TensorProto.FLOAT, ["n", 512])
    model = graph.finish({"author": "test"}).SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    assert session.get_modelmeta().custom_metadata_map == {"author": "test"}
    assert (session.run(["y"], {"x": np.ones((1, 512), np.float32)})[0] == 2).all()


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
