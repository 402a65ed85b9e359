"""The weights on disk are the checkpoint's, in bfloat16, and say their architecture."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes  # noqa: F401  lets numpy know bfloat16
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from blink_persistent.engines.cuda.weight_file import read_stored_architecture, write_weights
from blink_server.errors import InvalidModel
from blink_server.testing.memory_checkpoint import random_checkpoint, tiny_architecture

QWEN = tiny_architecture(
    tied_embeddings=False, attention_bias=True, qk_norm=True, rope_divisors=tuple([1.5] * 8)
)


def test_every_tensor_is_there_rounded_to_bfloat16(tmp_path: Path) -> None:
    checkpoint = random_checkpoint(QWEN, bits=4)
    told: list[float] = []
    write_weights(checkpoint, tmp_path / "w", told.append)
    plain = checkpoint.dequantized()
    with safe_open(tmp_path / "w", framework="np") as file:
        assert set(file.keys()) == set(plain)
        for name, expected in plain.items():
            found = file.get_tensor(name)
            assert found.dtype == "bfloat16"
            np.testing.assert_array_equal(found, expected.astype("bfloat16"))
    assert told == sorted(told)
    assert told[-1] == 1.0


MOE = tiny_architecture(family="qwen3_moe", experts=3, experts_per_token=2)
PHI = tiny_architecture(rotary_dim=12, rope_magnitude=1.19)


@pytest.mark.parametrize("architecture", [QWEN, MOE, PHI, tiny_architecture()])
def test_the_architecture_is_read_back(tmp_path: Path, architecture: object) -> None:
    write_weights(random_checkpoint(architecture), tmp_path / "w")  # type: ignore[arg-type]
    assert read_stored_architecture(tmp_path / "w") == architecture


def test_a_missing_a_cut_and_a_foreign_file_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with pytest.raises(InvalidModel, match=r"model\.safetensors.*is missing"):
        read_stored_architecture(path)
    write_weights(random_checkpoint(QWEN), path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InvalidModel, match="not a whole safetensors file"):
        read_stored_architecture(path)
    save_file({"x": np.zeros(3, np.float32)}, path)
    with pytest.raises(InvalidModel, match="was not written by this engine"):
        read_stored_architecture(path)


def test_a_tensor_that_does_not_fit_its_architecture_is_refused(tmp_path: Path) -> None:
    checkpoint = random_checkpoint(QWEN)
    write_weights(checkpoint, tmp_path / "w")
    with safe_open(tmp_path / "w", framework="np") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    del tensors["model.norm.weight"]
    save_file(tensors, tmp_path / "w", metadata)
    with pytest.raises(InvalidModel, match=r"model\.norm\.weight"):
        read_stored_architecture(tmp_path / "w")


def test_values_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    checkpoint = random_checkpoint(QWEN)
    matrix = checkpoint.tensors["model.layers.0.mlp.up_proj.weight"]
    assert isinstance(matrix, np.ndarray)
    matrix[3, 4] = 3.4e38  # becomes infinite in bfloat16
    with pytest.raises(InvalidModel, match=r"model\.layers\.0\.mlp\.up_proj\.weight"):
        write_weights(checkpoint, tmp_path / "w")
