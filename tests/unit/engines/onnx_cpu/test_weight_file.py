"""Large weights in a file of their own, found there by ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from blink_persistent.engines.onnx_cpu.graph import write_graph
from blink_persistent.engines.onnx_cpu.metadata import Compute
from blink_persistent.engines.onnx_cpu.weight_file import WeightFile
from blink_persistent.testing.driven_decoder import DrivenDecoder
from blink_server.testing.memory_checkpoint import random_checkpoint, tiny_architecture

LARGE = tiny_architecture(hidden_size=256, intermediate_size=512, vocabulary_size=500)


@pytest.mark.parametrize("compute", ["int8", "fp32"])
def test_a_graph_computes_the_same_wherever_its_weights_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compute: Compute
):
    checkpoint = random_checkpoint(LARGE, bits=4)
    logits = []
    for name, smallest in (("apart", 1024), ("within", 1 << 40)):
        monkeypatch.setattr("blink_persistent.engines.onnx_cpu.weight_file._SMALLEST", smallest)
        path = tmp_path / name / "model.onnx"
        path.parent.mkdir()
        files = write_graph(checkpoint, path, context_length=16, compute=compute)
        assert sorted(files) == sorted(file.name for file in path.parent.iterdir())
        assert ("model.onnx.data" in files) is (name == "apart")
        driven = DrivenDecoder(path)
        logits.append(driven.prefill(0, [3, 1, 4, 1, 5]))
        driven.decoder.close()
    np.testing.assert_array_equal(*logits)
    apart, within = (tmp_path / name / "model.onnx" for name in ("apart", "within"))
    assert apart.stat().st_size < within.stat().st_size / 10


def _read(tensor: Any, path: Path) -> bytes:
    where = {entry.key: entry.value for entry in tensor.external_data}
    assert where["location"] == path.name
    offset, length = int(where["offset"]), int(where["length"])
    assert offset % 4096 == 0
    return path.read_bytes()[offset : offset + length]


def test_every_tensor_lies_where_its_initializer_says(tmp_path: Path):
    path = tmp_path / "weights"
    random = np.random.default_rng(0)
    arrays = [
        random.integers(0, 256, (300, 300), dtype=np.uint8),
        random.standard_normal((200, 100), dtype=np.float32),
        random.standard_normal((150, 210), dtype=np.float32).T,
    ]
    with WeightFile(path) as file:
        tensors = [file.write(str(place), array) for place, array in enumerate(arrays)]
        assert file.write("small", np.zeros(100, np.float32)) is None
        assert file.names == ["weights"]
    for array, tensor in zip(arrays, tensors, strict=True):
        assert tensor is not None
        assert list(tensor.dims) == list(array.shape)
        assert _read(tensor, path) == np.ascontiguousarray(array).tobytes()


def test_without_a_large_tensor_there_is_no_file(tmp_path: Path):
    with WeightFile(tmp_path / "weights") as file:
        assert file.write("small", np.zeros(100, np.float32)) is None
        assert file.names == []
    assert list(tmp_path.iterdir()) == []


def test_weights_that_are_lost_are_noticed_at_the_load(tmp_path: Path):
    path = tmp_path / "model.onnx"
    files = write_graph(random_checkpoint(LARGE, bits=4), path, context_length=16)
    assert files == ["model.onnx", "model.onnx.data"]
    (tmp_path / "model.onnx.data").unlink()
    with pytest.raises(Exception, match=r"model\.onnx\.data"):
        onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
