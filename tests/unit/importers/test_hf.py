"""The reader of Hugging Face directories: exact values, and errors that name what is wrong."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blink_server.errors import InvalidModel
from blink_server.importers.hf import open_huggingface
from blink_server.importers.hf_config import FAMILIES
from blink_server.testing.tiny_huggingface import DTYPES, write_tiny_huggingface
from blink_server.testing.tiny_tokenizer import IM_END

Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


def refusal(directory: Path) -> str:
    with pytest.raises(InvalidModel) as refused:
        open_huggingface(directory)
    assert all(problem.file.is_relative_to(directory) for problem in refused.value.problems)
    return str(refused.value)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tied", "shards"), [(True, 1), (False, 3)])
def test_every_tensor_has_the_values_of_the_file(
    tmp_path: Path, family: str, dtype: str, tied: bool, shards: int
) -> None:
    model = write_tiny_huggingface(tmp_path / "m", family, dtype=dtype, tied=tied, shards=shards)
    checkpoint = open_huggingface(model.directory)
    assert checkpoint.architecture == model.architecture
    assert set(checkpoint.tensor_names()) == set(model.weights)
    for name, expected in model.weights.items():
        tensor = checkpoint.tensor(name)
        assert isinstance(tensor, np.ndarray)
        assert tensor.dtype == np.float32
        assert np.array_equal(tensor, expected), name


def test_text_and_provenance_come_with_it(tmp_path: Path) -> None:
    model = write_tiny_huggingface(tmp_path / "m", shards=2)
    stages: list[tuple[str, float]] = []
    checkpoint = open_huggingface(
        model.directory,
        origin={"model": "org/m"},
        progress=lambda stage, fraction: stages.append((stage, fraction)),
    )
    assert checkpoint.eos_token_ids == (IM_END,)
    assert checkpoint.bos_token_id is None
    assert checkpoint.tokenizer_json == (model.directory / "tokenizer.json").read_text()
    assert checkpoint.source == {
        "format": "safetensors",
        "file": "m/model.safetensors.index.json",
        "model": "org/m",
        "sha256": {
            file.name: hashlib.sha256(file.read_bytes()).hexdigest()
            for file in model.directory.glob("*.safetensors")
        },
    }
    hashed = [fraction for stage, fraction in stages if stage == "hash"]
    assert hashed == sorted(hashed)
    assert hashed[-1] == 1.0
    assert ("tokenizer", 1.0) in stages


def test_tensors_that_repeat_others_are_left_out(tmp_path: Path) -> None:
    extra = {
        "lm_head.weight": np.zeros((512, 64), np.float32),
        "model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32),
    }
    model = write_tiny_huggingface(tmp_path / "m", tensors=extra)
    assert set(open_huggingface(model.directory).tensor_names()) == set(model.weights)


def test_missing_foreign_misshapen_and_unreadable_tensors_are_named_together(
    tmp_path: Path,
) -> None:
    model = write_tiny_huggingface(
        tmp_path / "m",
        tied=False,
        tensors={
            "lm_head.weight": None,
            "model.layers.0.mlp.up_proj.weight": None,
            "model.layers.0.self_attn.q_proj.bias": np.zeros(64, np.float32),
            "model.norm.weight": np.zeros(32, np.float32),
            Q_PROJ: np.zeros((64, 64), np.int8),
        },
    )
    text = refusal(model.directory)
    file = model.directory / "model.safetensors"
    assert f"{file}: lm_head.weight: is missing (and 1 more tensors alike)" in text
    assert "q_proj.bias: is no tensor of this architecture" in text
    assert "model.norm.weight: is [32]; the architecture asks for the shape [64]" in text
    assert f"{Q_PROJ}: is 'I8'; supported types are F32, F16, BF16" in text


def test_undefined_values_are_refused_when_the_tensor_is_read(tmp_path: Path) -> None:
    norm = np.ones(64, np.float16)
    norm[3] = np.inf
    model = write_tiny_huggingface(tmp_path / "m", tensors={"model.norm.weight": norm})
    checkpoint = open_huggingface(model.directory)
    with pytest.raises(InvalidModel, match=r"model\.safetensors: model\.norm\.weight: holds inf"):
        checkpoint.tensor("model.norm.weight")


def test_an_unknown_tensor_name_is_a_key_error(tmp_path: Path) -> None:
    checkpoint = open_huggingface(write_tiny_huggingface(tmp_path / "m").directory)
    with pytest.raises(KeyError):
        checkpoint.tensor("lm_head.weight")


def test_directories_without_weights_or_config_say_what_is_missing(tmp_path: Path) -> None:
    assert "nowhere: is not a directory" in refusal(tmp_path / "nowhere")
    directory = write_tiny_huggingface(tmp_path / "m").directory
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    assert "model.safetensors: is missing (weights are read from safetensors" in refusal(directory)
    (directory / "config.json").unlink()
    assert "config.json: is missing" in refusal(directory)


def test_a_file_cut_short_or_damaged_is_refused(tmp_path: Path) -> None:
    directory = write_tiny_huggingface(tmp_path / "m").directory
    path = directory / "model.safetensors"
    whole = path.read_bytes()
    damaged = [whole[:size] for size in (0, 4, 8, 40, 2000, len(whole) - 1)]
    damaged.append(struct.pack("<Q", 2**60) + whole[8:])
    for data in damaged:
        path.write_bytes(data)
        assert "model.safetensors: is not a whole safetensors file" in refusal(directory)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.norm.weight": "model-00009.safetensors"}, "model-00009.safetensors: is missing"),
        ({"other": "model-00001-of-00002.safetensors"}, "index.json: other: is not in model-0000"),
        (
            {"model.norm.weight": "../m/model-00001-of-00002.safetensors"},
            "weight_map.model.norm.weight: is '../m/model-00001-of-00002.safetensors'; must be",
        ),
        ({"model.norm.weight": 3}, "weight_map.model.norm.weight: is 3; must be the name of a"),
    ],
)
def test_an_index_that_does_not_fit_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    directory = write_tiny_huggingface(tmp_path / "m", shards=2).directory
    path = directory / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"] |= change
    path.write_text(json.dumps(index))
    assert message in refusal(directory)


@pytest.mark.parametrize("document", [[], {}, {"weight_map": {}}, {"weight_map": ["a"]}])
def test_an_index_without_a_map_is_refused(tmp_path: Path, document: Any) -> None:
    directory = write_tiny_huggingface(
        tmp_path / "m", files={"model.safetensors.index.json": document}
    ).directory
    assert "index.json: weight_map: must map tensors to files" in refusal(directory)
