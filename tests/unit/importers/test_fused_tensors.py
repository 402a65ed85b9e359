"""Phi's fused projections become canonical ones that say the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file

from blink_server.errors import InvalidModel
from blink_server.importers.fused_tensors import head_order
from blink_server.importers.hf import open_huggingface
from blink_server.testing.memory_checkpoint import tiny_architecture
from blink_server.testing.tiny_huggingface import write_tiny_huggingface

Array = npt.NDArray[Any]


def half_split(x: Array, angle: Array) -> Array:
    """Every element of the last axis turned, with the one that is half of them later."""
    first, second = np.split(x, 2, axis=-1)
    cos, sin = np.cos(angle), np.sin(angle)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


@pytest.mark.parametrize("turning", [2, 8, 12, 16])
def test_scores_are_those_of_the_files_layout(turning: int) -> None:
    """In a file the first `turning` elements of a head turn among themselves."""
    architecture = tiny_architecture(rotary_dim=turning)
    size = architecture.head_dim
    q, k = np.random.default_rng(0).standard_normal((2, 3 * size))
    own = 10000.0 ** (-np.arange(0, turning, 2) / turning)
    order = head_order(architecture, 3 * size)
    assert (order is None) == (turning == size)
    for q_at, k_at in ((0, 0), (5, 2), (40, 39)):
        plain = []
        for x, at in ((q, q_at), (k, k_at)):
            heads = x.reshape(3, size).copy()
            heads[:, :turning] = half_split(heads[:, :turning], at * own)
            plain.append(heads)
        moved = [
            half_split(
                (x if order is None else x[order]).reshape(3, size),
                at * architecture.rotary_frequencies(),
            )
            for x, at in ((q, q_at), (k, k_at))
        ]
        np.testing.assert_allclose(
            (moved[0] * moved[1]).sum(axis=1), (plain[0] * plain[1]).sum(axis=1), rtol=1e-12
        )


def test_values_and_output_keep_their_order(tmp_path: Path) -> None:
    model = write_tiny_huggingface(tmp_path / "m", "phi3")
    checkpoint = open_huggingface(model.directory)
    file = load_file(model.directory / "model.safetensors")
    prefix = "model.layers.1"

    def read(name: str) -> Array:
        tensor = checkpoint.tensor(f"{prefix}.{name}.weight")
        assert isinstance(tensor, np.ndarray)
        return tensor

    fused, heads = file[f"{prefix}.self_attn.qkv_proj.weight"], model.architecture.heads
    keys = model.architecture.kv_heads * model.architecture.head_dim
    assert np.array_equal(read("self_attn.v_proj"), fused[-keys:])
    queries = read("self_attn.q_proj")
    assert not np.array_equal(queries, fused[: heads * model.architecture.head_dim])
    gate, up = np.split(file[f"{prefix}.mlp.gate_up_proj.weight"], 2)
    assert np.array_equal(read("mlp.gate_proj"), gate)
    assert np.array_equal(read("mlp.up_proj"), up)


def test_problems_are_told_of_the_tensors_that_the_file_has(tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.qkv_proj.weight"
    wrong = {
        name: np.zeros((64, 64), np.float32),
        "model.layers.1.mlp.gate_up_proj.weight": None,
    }
    directory = write_tiny_huggingface(tmp_path / "m", "phi3", tensors=wrong).directory
    with pytest.raises(InvalidModel) as refused:
        open_huggingface(directory)
    assert f"{name}: is [64, 64]; the architecture asks for the shape [128, 64]" in str(
        refused.value
    )
    assert "model.layers.1.mlp.gate_proj.weight: is missing (and 1 more" in str(refused.value)
