"""What an import writes for the engine `cuda`, on a machine without a GPU and without PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  lets numpy know bfloat16
import numpy as np
import pytest
from safetensors import safe_open

from blink_persistent.engines.cuda import weight_file
from blink_persistent.engines.cuda.engine import CudaEngine
from blink_persistent.engines.cuda.options import read_options
from blink_persistent.engines.random_checkpoint import open_random
from blink_persistent.graph_grid import GraphGrid
from blink_server.backend import BuildResult, ModelVersion
from blink_server.errors import InvalidModel
from blink_server.importers.checkpoint import Checkpoint
from blink_server.importers.gguf import open_gguf
from blink_server.importers.hf import open_huggingface
from blink_server.importers.hf_config import FAMILIES
from blink_server.testing.memory_checkpoint import random_checkpoint, tiny_architecture
from blink_server.testing.tiny_gguf import write_tiny_gguf
from blink_server.testing.tiny_huggingface import write_tiny_huggingface

EXACTLY = "weights are held in bfloat16: as they were, exactly"


def build(checkpoint: Checkpoint, directory: Path, **asked: Any) -> BuildResult:
    arguments: dict[str, Any] = {"limits": {}, "options": {}, "progress": lambda *_: None} | asked
    return CudaEngine().build(checkpoint, directory, **arguments)


def stored(directory: Path) -> dict[str, Any]:
    with safe_open(directory / "model.safetensors", framework="np") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def test_what_is_built_is_what_is_served(tmp_path: Path) -> None:
    checkpoint = random_checkpoint(tiny_architecture(context_length=1000, qk_norm=True))
    told: list[tuple[str, float]] = []
    result = build(
        checkpoint,
        tmp_path,
        limits={"max_rows": 3},
        options={"block_size": 32},
        progress=lambda stage, part: told.append((stage, part)),
    )
    assert list(result.files) == ["model.safetensors"]
    grid = GraphGrid.from_json(result.graph_grid)
    assert result.config["limits"] == {
        **{"context_length": 1000, "max_rows": 3, "max_prefill_tokens": 2048, "slots": 4096}
    }
    assert (grid.max_rows, grid.max_sequences, grid.max_prefill_tokens) == (3, 3, 2048)
    assert (grid.mixed_sequences, grid.max_mixed_tokens) == (3, 608)
    assert told[-1] == ("weights", 1.0)
    options = read_options(ModelVersion("m", 1, tmp_path, {**result.config, "eos_token_ids": []}))
    assert options.architecture == checkpoint.architecture
    assert (options.file, options.block_size) == ("model.safetensors", 32)
    assert options.block_count is None


@pytest.mark.parametrize(
    ("experts", "limits", "tokens"),
    [
        (0, {}, 608),
        (8, {}, 1024),
        (8, {"max_prefill_tokens": 512}, 512),
        (0, {"prefill_chunk": 128}, 128),
    ],
)
def test_mixed_steps_take_a_chunk_that_fits_the_model(
    tmp_path: Path, experts: int, limits: dict[str, int], tokens: int
) -> None:
    """Longer ones with experts, of which a step reads more weights for the same arithmetic."""
    changes = {"experts": experts, "experts_per_token": 2} if experts else {}
    checkpoint = random_checkpoint(tiny_architecture(context_length=4096, **changes))
    grid = GraphGrid.from_json(build(checkpoint, tmp_path, limits=limits).graph_grid)
    assert grid.max_mixed_tokens == tokens
    assert max(key.rows for key in grid.keys) == grid.max_rows == 64


@pytest.mark.parametrize(
    ("trained", "asked", "context", "tokens"),
    [(131072, {}, 8192, 2048), (131072, {"context_length": 65536}, 65536, 2048), (64, {}, 64, 512)],
)
def test_the_context_is_the_models_up_to_a_bound_unless_more_is_asked_for(
    tmp_path: Path, trained: int, asked: dict[str, int], context: int, tokens: int
) -> None:
    checkpoint = random_checkpoint(tiny_architecture(context_length=trained))
    limits = build(checkpoint, tmp_path, limits=asked).config["limits"]
    assert (limits["context_length"], limits["max_prefill_tokens"]) == (context, tokens)
    assert limits["max_rows"] == 64


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_a_hugging_face_models_weights_are_rounded_and_the_error_is_told(
    tmp_path: Path, family: str, dtype: str
) -> None:
    model = write_tiny_huggingface(tmp_path / "hf", family, dtype=dtype, shards=2)
    result = build(open_huggingface(model.directory), tmp_path)
    found = stored(tmp_path)
    assert set(found) == set(model.weights)
    for name, expected in model.weights.items():
        np.testing.assert_array_equal(found[name], expected.astype("bfloat16"))
    if dtype == "BF16":
        assert result.notes[0] == EXACTLY
    else:
        assert (
            "error 0.1" in result.notes[0]
        )  # of a float with 8 bits: up to 0.39 %, 0.17 on average


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "F16", "BF16"])
def test_a_gguf_files_weights_are_dequantized(tmp_path: Path, kind: str) -> None:
    model = write_tiny_gguf(tmp_path / "m.gguf", matrices=kind, embeddings="F16")
    result = build(open_gguf(model.path), tmp_path)
    found = stored(tmp_path)
    for name, expected in model.weights.items():
        # A file's blocks may be added up in another order than its own library does.
        close = expected.astype(np.float32)
        np.testing.assert_allclose(found[name].astype(np.float32), close, rtol=2**-8, atol=1e-7)
    assert "error 0.1" in result.notes[0]


def test_a_large_tensor_is_written_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for bits in (None, 4):
        checkpoint = random_checkpoint(tiny_architecture(attention_bias=True), bits=bits)
        whole = weight_file.write_weights(checkpoint, tmp_path / "whole")
        with monkeypatch.context() as patch:
            patch.setattr(weight_file, "_VALUES_AT_ONCE", 7 * 64)
            parts = weight_file.write_weights(checkpoint, tmp_path / "parts")
        assert (tmp_path / "parts").read_bytes() == (tmp_path / "whole").read_bytes()
        assert str(parts) == str(whole)


@pytest.mark.parametrize(
    ("options", "limits", "shape", "field"),
    [
        ({"compute": "fp32"}, {}, {}, "engine.compute"),
        ({"dtype": "float8"}, {}, {}, "engine.dtype"),
        ({"block_size": 48}, {}, {}, "engine.block_size"),
        ({}, {"context_length": 65}, {}, "limits.context_length"),
        ({}, {}, {"kv_heads": 3}, "architecture.kv_heads"),
    ],
)
def test_what_cannot_be_served_is_refused_before_anything_is_written(
    tmp_path: Path,
    options: dict[str, Any],
    limits: dict[str, int],
    shape: dict[str, int],
    field: str,
) -> None:
    checkpoint = random_checkpoint(tiny_architecture(**shape))
    with pytest.raises(InvalidModel) as refused:
        build(checkpoint, tmp_path, options=options, limits=limits)
    assert [problem.field for problem in refused.value.problems] == [field]
    assert list(tmp_path.iterdir()) == []


def test_random_weights_take_no_file(tmp_path: Path) -> None:
    checkpoint = open_random("llama-3-8b", revision=None, progress=lambda *_: None)
    result = build(checkpoint, tmp_path)
    assert list(result.files) == []
    assert list(tmp_path.iterdir()) == []
    assert result.config["engine"] == {
        **{"name": "cuda", "weights": "random", "model": "llama-3-8b", "dtype": "bfloat16"}
    }
    options = read_options(ModelVersion("m", 1, tmp_path, result.config))
    assert options.file is None
    assert options.architecture == checkpoint.architecture
    assert "128 KiB a token" in result.notes[1]


def test_a_version_is_warmed_up_where_its_context_holds_that(tmp_path: Path) -> None:
    checkpoint = random_checkpoint(tiny_architecture())
    assert build(checkpoint, tmp_path).config["warmup"] == [{"prompt": "Hello", "max_tokens": 4}]
    assert "warmup" not in build(checkpoint, tmp_path, limits={"context_length": 8}).config
