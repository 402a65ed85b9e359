"""A graph's file is judged by its metadata alone, and every damage to its length is noticed."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import onnx
import pytest

from blink_persistent.engines.onnx_cpu.graph import model_shape, write_graph
from blink_persistent.engines.onnx_cpu.graph_file import read_model_shape
from blink_server.errors import InvalidModel
from blink_server.testing.memory_checkpoint import random_checkpoint, tiny_architecture

# Its table of embeddings is large enough for the file of weights.
ARCHITECTURE = tiny_architecture(vocabulary_size=3000)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graph") / "model.onnx"
    write_graph(random_checkpoint(ARCHITECTURE, bits=4), path, context_length=32, compute="fp32")
    return path


@pytest.fixture
def graph(tmp_path: Path, whole: Path) -> Path:
    """A copy that a test may damage."""
    for file in whole.parent.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path / whole.name


def refusal(graph: Path) -> str:
    with pytest.raises(InvalidModel) as refused:
        read_model_shape(graph)
    return str(refused.value)


def test_the_shape_is_what_the_builder_said(graph: Path):
    shape = read_model_shape(graph)
    assert shape.weight_file_bytes == (graph.parent / "model.onnx.data").stat().st_size > 0
    expected = model_shape(ARCHITECTURE, 32, "fp32")
    for name in ("layers", "kv_heads", "head_dim", "vocabulary_size", "context_length", "compute"):
        assert getattr(shape, name) == getattr(expected, name)


def test_the_graph_itself_is_stepped_over(graph: Path):
    """Holes of a terabyte in the place of weights would not be read in a lifetime of tests."""
    model = onnx.load(graph, load_external_data=False)
    model.graph.Clear()
    prefix = model.SerializeToString()
    length = 1 << 40
    size = b"\x80\x80\x80\x80\x80\x20"
    with graph.open("wb") as file:
        file.write(b"\x3a" + size)  # field 7, then 2**40
        file.seek(length, 1)
        file.write(prefix)
    assert read_model_shape(graph).layers == ARCHITECTURE.layers


def test_every_truncation_is_noticed(graph: Path):
    content = graph.read_bytes()
    description = content.index(b"blink", len(content) // 2)
    for size in (0, 1, 5, len(content) // 2, description, len(content) - 1):
        graph.write_bytes(content[:size])
        assert str(graph) in refusal(graph)


def test_noise_and_foreign_graphs_are_refused(graph: Path):
    for content in (b"no model", b"\xff" * 1000, b"\x00" * 1000):
        graph.write_bytes(content)
        assert "must be a whole ONNX model" in refusal(graph)
    foreign = onnx.ModelProto(producer_name="somebody", graph=onnx.GraphProto(name="g"))
    graph.write_bytes(foreign.SerializeToString())
    assert "metadata format" in refusal(graph)


def test_weights_that_are_cut_short_or_missing_are_named(graph: Path):
    weights = graph.with_name("model.onnx.data")
    whole = weights.stat().st_size
    with weights.open("r+b") as file:
        file.truncate(whole - 1)
    assert refusal(graph) == (
        f"{weights}: has {whole - 1} bytes; must have {whole}, as the import wrote it"
    )
    weights.unlink()
    assert refusal(graph) == f"{weights}: cannot be read: No such file or directory"


def test_a_file_that_cannot_be_read_is_named(graph: Path):
    with mock.patch.object(Path, "open", side_effect=PermissionError(13, "Permission denied")):
        assert refusal(graph) == f"{graph}: cannot be read: Permission denied"
