"""A version of the engine `cuda` gives back the checkpoint that it was imported from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from blink_persistent.engines.cuda.engine import CudaEngine
from blink_persistent.engines.random_checkpoint import RandomCheckpoint
from blink_server.backend import ModelVersion
from blink_server.config import load_model_config
from blink_server.errors import InvalidModel
from blink_server.importers.command import import_command
from blink_server.importers.hf import open_huggingface
from blink_server.testing.tiny_huggingface import write_tiny_huggingface


def imported(base: Path, *source: str) -> ModelVersion:
    arguments = [*source, "--name", "tiny", "--model-repository", str(base), "--engine", "cuda"]
    result = CliRunner().invoke(import_command, arguments)
    assert result.exception is None, result.output
    directory = base / "tiny" / "1"
    return ModelVersion("tiny", 1, directory, load_model_config(directory))


def test_weights_and_texts_are_those_that_were_imported(tmp_path: Path) -> None:
    source = write_tiny_huggingface(tmp_path / "hf", "qwen3", dtype="BF16").directory
    origin = open_huggingface(source)
    found = CudaEngine().checkpoint(imported(tmp_path / "models", "--hf", str(source)))
    assert found.architecture == origin.architecture
    assert (found.eos_token_ids, found.bos_token_id) == (origin.eos_token_ids, origin.bos_token_id)
    assert json.loads(found.tokenizer_json) == json.loads(origin.tokenizer_json)
    assert found.chat_template == origin.chat_template
    assert found.source["sha256"] == origin.source["sha256"]
    assert sorted(found.tensor_names()) == sorted(origin.tensor_names())
    for name in found.tensor_names():
        tensor: Any = found.tensor(name)
        np.testing.assert_array_equal(tensor, origin.tensor(name))
        assert tensor.dtype == np.float32
    with pytest.raises(KeyError):
        found.tensor("no.such")


def test_random_weights_are_made_again(tmp_path: Path) -> None:
    found = CudaEngine().checkpoint(imported(tmp_path, "--random", "llama-3-8b"))
    assert isinstance(found, RandomCheckpoint)
    assert found.model == "llama-3-8b"


def test_weights_that_are_not_whole_are_refused(tmp_path: Path) -> None:
    source = write_tiny_huggingface(tmp_path / "hf", "qwen3", dtype="BF16").directory
    version = imported(tmp_path / "models", "--hf", str(source))
    weights = version.directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(InvalidModel, match="not a whole safetensors file"):
        CudaEngine().checkpoint(version)
