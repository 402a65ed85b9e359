"""Models of every family, from their files to logits, against the plain decoder in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from blink_persistent.engines.onnx_cpu.engine import MODEL_FILE, OnnxCpuEngine
from blink_persistent.testing.driven_decoder import DrivenDecoder
from blink_server.importers.checkpoint import Architecture, Checkpoint, QuantizedTensor, Tensor
from blink_server.importers.gguf import open_gguf
from blink_server.importers.hf import open_huggingface
from blink_server.importers.quantize import Bits
from blink_server.importers.quantizing import QuantizingCheckpoint
from blink_server.testing.llama_reference import forward
from blink_server.testing.tiny_gguf import TinyShape, write_tiny_gguf
from blink_server.testing.tiny_huggingface import write_tiny_huggingface

PROMPT = [3, 99, 14, 15, 92, 65, 35, 0, 100, 7, 9]
CONTINUATION = [20, 46, 64]

# Of the logits' spread. Int8 kernels round activations to 1/127 of their block's largest.
FLOAT_TOLERANCE, INT8_TOLERANCE = 1e-5, 0.05

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
LONGROPE = {"rope_type": "longrope", "short_factor": [1, 1, 1, 2, 2, 4], "long_factor": [9] * 6}
HUGGING_FACE: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama 3": ("llama", {"rope_theta": 500000.0, "rope_scaling": LLAMA3}),
    "llama, linear": ("llama", {"rope_scaling": {"type": "linear", "factor": 4.0}}),
    "mistral": ("mistral", {"sliding_window": 32}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "phi3": ("phi3", {}),
    "phi3, longrope": (
        "phi3",
        {"rope_scaling": LONGROPE, "original_max_position_embeddings": 32},
    ),
}


def _logits(checkpoint: Checkpoint, directory: Path) -> np.ndarray:
    """After the prompt and each token of the continuation, from the files that `build` writes."""
    directory.mkdir()
    OnnxCpuEngine().build(
        checkpoint, directory, limits={}, options={}, progress=lambda stage, fraction: None
    )
    driven = DrivenDecoder(directory / MODEL_FILE)
    logits = [driven.prefill(0, PROMPT)]
    logits += [driven.decode({0: token})[0] for token in CONTINUATION]
    driven.decoder.close()
    return np.array(logits)


def _values(tensor: Tensor) -> np.ndarray:
    return tensor.dequantize() if isinstance(tensor, QuantizedTensor) else tensor


def _error(logits: np.ndarray, architecture: Architecture, weights: dict[str, Any]) -> float:
    """Root mean square of the logits' errors, as a share of their spread."""
    doubles = {name: values.astype(np.float64) for name, values in weights.items()}
    wanted = forward(architecture, doubles, PROMPT + CONTINUATION).logits[len(PROMPT) - 1 :]
    return float(np.sqrt(np.mean((logits - wanted) ** 2)) / wanted.std())


@pytest.mark.parametrize("name", HUGGING_FACE)
@pytest.mark.parametrize("bits", [None, *get_args(Bits)])
def test_hugging_face_models(tmp_path: Path, name: str, bits: Bits | None):
    family, config = HUGGING_FACE[name]
    model = write_tiny_huggingface(
        tmp_path / "m", family, config=config, dtype="BF16", tied=family != "mistral", shards=2
    )
    checkpoint = open_huggingface(model.directory)
    if bits is None:
        logits = _logits(checkpoint, tmp_path / "version")
        assert _error(logits, checkpoint.architecture, model.weights) < FLOAT_TOLERANCE
        return
    quantizing = QuantizingCheckpoint(checkpoint, bits)
    logits = _logits(quantizing, tmp_path / "version")
    held = {name: _values(quantizing.tensor(name)) for name in quantizing.tensor_names()}
    assert _error(logits, checkpoint.architecture, held) < INT8_TOLERANCE


def test_rotary_scaling_is_far_outside_the_tolerance_when_ignored(tmp_path: Path):
    model = write_tiny_huggingface(
        tmp_path / "m", config={"rope_scaling": {"type": "linear", "factor": 4.0}}
    )
    logits = _logits(open_huggingface(model.directory), tmp_path / "version")
    # The writer's own architecture has no scaling.
    assert _error(logits, model.architecture, model.weights) > 0.2


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("kind", ["F16", "BF16", "Q4_0", "Q4_1", "Q5_1", "Q8_0", "Q4_K", "Q6_K"])
def test_gguf_models(tmp_path: Path, architecture: str, kind: str):
    model = write_tiny_gguf(
        tmp_path / "m.gguf",
        architecture=architecture,
        matrices=kind,
        embeddings="Q6_K" if kind.endswith("_K") else "Q8_0",
        shape=TinyShape(hidden_size=256, intermediate_size=256, heads=16, kv_heads=8),
    )
    checkpoint = open_gguf(model.path)
    logits = _logits(checkpoint, tmp_path / "version")
    assert _error(logits, checkpoint.architecture, model.weights) < INT8_TOLERANCE
