"""Weights are mapped from the engine cuda's file, and lie there as the network wants them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from blink_persistent.engines.cuda.weight_file import write_weights
from blink_persistent.engines.tensorrt.weights import NetworkWeights, map_weights
from blink_server.errors import InvalidModel
from blink_server.importers.checkpoint import Architecture
from blink_server.testing.memory_checkpoint import random_checkpoint, tiny_architecture


def write(directory: Path, changes: dict[str, Any]) -> tuple[Path, Architecture, dict[str, Any]]:
    checkpoint = random_checkpoint(tiny_architecture(**changes), seed=2)
    path = directory / "model.safetensors"
    write_weights(checkpoint, path)
    rounded = {
        name: tensor.astype(ml_dtypes.bfloat16) for name, tensor in checkpoint.dequantized().items()
    }
    return path, checkpoint.architecture, rounded


def shares_memory_with_the_file(weights: NetworkWeights, part: Any) -> bool:
    """An array's memory lies in the one map that all tensors are views of."""
    whole = weights["model.embed_tokens.weight"]
    while whole.base is not None and isinstance(whole.base, np.ndarray):
        whole = whole.base
    return np.shares_memory(whole, part)


def test_the_file_is_read_as_it_was_written(tmp_path: Path, family: dict[str, Any]) -> None:
    path, architecture, rounded = write(tmp_path, family)
    found, weights = map_weights(path)
    assert found == architecture
    assert weights.dtype == ml_dtypes.bfloat16
    for name, tensor in rounded.items():
        np.testing.assert_array_equal(weights[name], tensor, name)


def test_projections_with_one_input_are_one_view(tmp_path: Path, family: dict[str, Any]) -> None:
    path, architecture, rounded = write(tmp_path, family)
    _, weights = map_weights(path)
    prefix = "model.layers.1.self_attn"
    stacks = [[f"{prefix}.{part}_proj.weight" for part in "qkv"]]
    if architecture.attention_bias:
        stacks.append([f"{prefix}.{part}_proj.bias" for part in "qkv"])
    if not architecture.experts:
        stacks.append([f"model.layers.1.mlp.{part}_proj.weight" for part in ("gate", "up")])
    for names in stacks:
        whole = weights.stacked(*names)
        np.testing.assert_array_equal(whole, np.concatenate([rounded[name] for name in names]))
        assert shares_memory_with_the_file(weights, whole), f"{names} were copied"


def test_all_experts_of_a_layer_are_one_view(tmp_path: Path) -> None:
    changes = {"family": "qwen3_moe", "experts": 5, "experts_per_token": 2}
    path, architecture, rounded = write(tmp_path, changes)
    _, weights = map_weights(path)
    groups = [
        [f"model.layers.0.{mlp}.{part}_proj.weight" for part in ("gate", "up", "down")]
        for mlp in architecture.mlp_names()
    ]
    whole = weights.groups(groups)
    for row, names in zip(whole, groups, strict=True):
        expected = np.concatenate([rounded[name].ravel() for name in names])
        np.testing.assert_array_equal(row, expected)
    assert shares_memory_with_the_file(weights, whole), "the experts were copied"


def test_tensors_that_lie_apart_are_joined_once() -> None:
    tensors = {"a": np.ones((2, 3), np.float32), "b": np.zeros((1, 3), np.float32)}
    weights = NetworkWeights(tensors)
    whole = weights.stacked("a", "b")
    assert whole.tolist() == [[1] * 3, [1] * 3, [0] * 3]
    assert np.shares_memory(whole, weights.stacked("a", "b"))


def test_a_file_that_is_cut_short_is_refused_by_name(tmp_path: Path) -> None:
    path, _, _ = write(tmp_path, {})
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InvalidModel, match=r"model\.safetensors.*not a whole safetensors file"):
        map_weights(path)
