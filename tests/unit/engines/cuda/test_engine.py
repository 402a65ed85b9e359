"""What the engine says of a version without a GPU: problems and memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from blink_persistent.engines.cuda.architectures import ARCHITECTURES
from blink_persistent.engines.cuda.engine import CudaEngine
from blink_persistent.engines.cuda.memory import (
    fixed_bytes,
    kv_entry_bytes,
    most_sampled,
    most_tokens,
    weight_bytes,
    workspace_bytes,
)
from blink_persistent.engines.cuda.options import read_options
from blink_persistent.engines.cuda.weight_file import WEIGHT_FILE, write_weights
from blink_persistent.graph_grid import default_grid
from blink_server.backend import ModelVersion
from blink_server.errors import InvalidModel
from blink_server.testing.memory_checkpoint import random_checkpoint, tiny_architecture

RANDOM = {"weights": "random", "model": "llama-3-8b"}


def version(
    directory: Path, options: Mapping[str, Any], context_length: int = 64, **limits: Any
) -> ModelVersion:
    config = {
        "engine": {"name": "cuda", **options},
        "limits": {"context_length": context_length, **limits},
        "eos_token_ids": [2],
    }
    return ModelVersion("m", 1, directory, config)


@pytest.mark.parametrize(
    ("options", "field", "expected"),
    [
        ({"weights": "zeros"}, "engine.weights", "must be one of file, random"),
        ({"weights": "random"}, "engine.model", "must be one of smollm2-135m"),
        ({"weights": "random", "model": ["llama-3-8b"]}, "engine.model", "must be one of smollm2"),
        ({**RANDOM, "file": "x"}, "engine.file", "must be left out"),
        ({"file": ["x"]}, "engine.file", "must be a string"),
        ({"model": "llama-3-8b"}, "engine.model", "must be left out"),
        ({**RANDOM, "block_size": 48}, "engine.block_size", "must be one of 16, 32"),
        ({**RANDOM, "block_count": 1}, "engine.block_count", "2 or more"),
        ({**RANDOM, "block_count": True}, "engine.block_count", "2 or more"),
        ({**RANDOM, "capture": "later"}, "engine.capture", "must be one of all, background"),
        (
            {**RANDOM, "decode_kernels": "primed"},
            "engine.decode_kernels",
            "must be one of likely, measured",
        ),
        ({**RANDOM, "speed": 1}, "engine.speed", "use one of"),
        ({}, "", "is missing: import the model"),
    ],
)
def test_wrong_options_are_named(
    tmp_path: Path, options: dict[str, Any], field: str, expected: str
) -> None:
    (problem,) = CudaEngine().check(version(tmp_path, options))
    assert problem.field == field
    assert expected in problem.expected


def test_what_is_likely_the_fastest_is_the_default() -> None:
    given = [{}, {"decode_kernels": "likely"}, {"decode_kernels": "measured"}]
    found = [read_options(version(Path(), {**RANDOM, **options})) for options in given]
    assert [options.likely_kernels for options in found] == [True, True, False]


def test_a_context_beyond_the_models_is_refused(tmp_path: Path) -> None:
    (problem,) = CudaEngine().check(version(tmp_path, RANDOM, context_length=8193))
    assert (problem.field, problem.value) == ("limits.context_length", 8193)
    assert CudaEngine().check(version(tmp_path, RANDOM, context_length=8192)) == []


def test_heads_that_no_group_shares_are_refused(tmp_path: Path) -> None:
    odd = tiny_architecture(heads=4, kv_heads=3)
    write_weights(random_checkpoint(odd), tmp_path / WEIGHT_FILE)
    (problem,) = CudaEngine().check(version(tmp_path, {}))
    assert problem.field == "architecture.kv_heads"


def test_bytes_of_a_known_model() -> None:
    shape = ARCHITECTURES["llama-3-8b"]
    assert weight_bytes(shape) == 2 * 8_030_261_248
    assert kv_entry_bytes(shape) == 128 << 10
    assert weight_bytes(ARCHITECTURES["smollm2-135m"]) == 2 * 134_515_008
    assert weight_bytes(ARCHITECTURES["qwen3-32b"]) == 2 * 32_762_123_264
    assert weight_bytes(ARCHITECTURES["qwen3-30b-a3b"]) == 2 * 30_532_122_624
    assert weight_bytes(ARCHITECTURES["phi-4"]) == 2 * 14_659_507_200
    assert kv_entry_bytes(ARCHITECTURES["qwen3-30b-a3b"]) == 96 << 10
    assert weight_bytes(ARCHITECTURES["qwen3-32b"]) == 2 * 32_762_123_264


@pytest.mark.parametrize("changes", [{}, {"experts": 16, "experts_per_token": 4}])
def test_bytes_of_the_workspace_are_those_of_its_tensors(changes: dict[str, int]) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from blink_persistent.engines.cuda.step_tensors import Workspace

    shape = tiny_architecture(heads=6, kv_heads=3, **changes)
    work = Workspace.allocate(shape, 300, 9, device="cpu", dtype=torch.bfloat16)
    tensors = [getattr(work, name) for name in Workspace.__slots__ if name != "experts"]
    tensors += [getattr(work.experts, name) for name in type(work.experts).__slots__]
    assert workspace_bytes(shape, 300, 9) == sum(tensor.nbytes for tensor in tensors)


def test_experts_that_the_kernels_cannot_take_are_refused(tmp_path: Path) -> None:
    odd = tiny_architecture(intermediate_size=40, experts=1025, experts_per_token=1, layers=1)
    write_weights(random_checkpoint(odd), tmp_path / "model.safetensors")
    problems = {found.field: found.value for found in CudaEngine().check(version(tmp_path, {}))}
    assert problems == {"architecture.intermediate_size": 40, "architecture.experts": 1025}


def test_the_estimate_holds_weights_and_one_full_request(tmp_path: Path) -> None:
    grid = default_grid(64, 2048, max_sequences=8)
    (tmp_path / "graph_grid.json").write_text(json.dumps(grid.to_json()))
    short = CudaEngine().estimate(version(tmp_path, RANDOM, 4096))
    full = CudaEngine().estimate(version(tmp_path, RANDOM, 8192))
    assert full - short == 4096 * (128 << 10)
    assert 16.06e9 + 1.07e9 < full < 20e9
    asked = CudaEngine().estimate(version(tmp_path, {**RANDOM, "block_count": 1000}, 4096))
    assert asked - short == (1000 - 65) * 64 * (128 << 10)


def test_the_estimate_has_room_for_mixed_steps() -> None:
    """Logits of sequences and of rows at once, and all their tokens."""
    given = read_options(version(Path(), RANDOM))
    plain = default_grid(64, 2048, max_sequences=8)
    mixed = default_grid(64, 2048, max_sequences=8, max_mixed_tokens=2048)
    assert (most_tokens(plain), most_sampled(plain)) == (2048, 64)
    assert (most_tokens(mixed), most_sampled(mixed)) == (2048 + 64, 64 + 8)
    work = [workspace_bytes(given.architecture, *most) for most in ((2048, 64), (2112, 72))]
    graphs = (len(mixed.keys) - len(plain.keys)) * (3 << 20)
    assert fixed_bytes(given, mixed) - fixed_bytes(given, plain) == work[1] - work[0] + graphs


def test_mixed_steps_that_are_not_wanted_need_no_memory(tmp_path: Path) -> None:
    grid = default_grid(64, 2048, max_sequences=8, max_mixed_tokens=512)
    (tmp_path / "graph_grid.json").write_text(json.dumps(grid.to_json()))
    mixed, turns = (
        CudaEngine().estimate(version(tmp_path, RANDOM, 4096, prefill=prefill))
        for prefill in ("mixed", "alternating")
    )
    given = read_options(version(tmp_path, RANDOM))
    assert mixed - turns == fixed_bytes(given, grid) - fixed_bytes(given, grid.without_mixed()) > 0


def test_no_estimate_of_a_version_with_problems(tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match="is missing"):
        CudaEngine().estimate(version(tmp_path, {}))
