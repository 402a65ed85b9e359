"""What config.json says of prompts beside rows that decode: chunks, mixed steps or turns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from blink_persistent.backend import PersistentBackend
from blink_persistent.engines.scripted import ScriptedEngine
from blink_persistent.graph_grid import MIXED, default_grid
from blink_persistent.loading import Assignment
from blink_persistent.testing.scripted_version import write_scripted_version
from blink_server.backend import ModelVersion
from blink_server.config import load_model_config
from blink_server.testing.tiny_repository import write_json


def version_with(directory: Path, mixed: list[tuple[int, int, int]], **limits: Any) -> ModelVersion:
    """A scripted version of 4 rows and up to 64 prompt tokens a step."""
    directory = write_scripted_version(directory, limits={"max_prefill_tokens": 64, **limits})
    grid = default_grid(4, 64, max_sequences=2).to_json()
    keys = [dict(zip(("sequences", "tokens", "rows"), key, strict=True)) for key in mixed]
    write_json(directory / "graph_grid.json", {**grid, "mixed": keys} if keys else grid)
    return ModelVersion("scripted", 1, directory, load_model_config(directory))


def provisioned(version: ModelVersion) -> Any:
    sampler: Any = None  # the scripted engine asks none
    assignment = Assignment(version, ScriptedEngine(), sampler)
    return assignment.provision(threads=1, progress=lambda what, part: None)


def test_the_chunk_is_the_largest_step_unless_given(tmp_path: Path) -> None:
    assert provisioned(version_with(tmp_path / "a", [])).shape.prefill_chunk == 0
    given = version_with(tmp_path / "b", [], prefill_chunk=24)
    assert provisioned(given).shape.prefill_chunk == 24


@pytest.mark.parametrize(
    ("prefill", "deterministic", "count"),
    [("mixed", False, 2), ("alternating", False, 0), ("mixed", True, 0)],
)
def test_mixed_keys_are_left_out_where_turns_or_equal_bits_are_asked_for(
    tmp_path: Path, prefill: str, deterministic: bool, count: int
) -> None:
    version = version_with(tmp_path, [(2, 16, 4), (2, 32, 4)], prefill=prefill)
    version.config["deterministic"] = deterministic
    assert len(provisioned(version).shape.grid.of_phase(MIXED)) == count


@pytest.mark.parametrize(
    ("mixed", "limits", "field", "expected"),
    [
        ([], {"prefill_chunk": 65}, "limits.prefill_chunk", "max_prefill_tokens, 64, or less"),
        ([(1, 16, 4), (2, 16, 4)], {}, "mixed", "the same number of sequences"),
        ([(2, 16, 5)], {}, "mixed", "goes beyond the largest"),
    ],
)
def test_what_does_not_fit_is_refused(
    tmp_path: Path,
    mixed: list[tuple[int, int, int]],
    limits: dict[str, int],
    field: str,
    expected: str,
) -> None:
    samplers: dict[str, Any] = {"default": None}
    backend = PersistentBackend({"scripted": ScriptedEngine}, samplers, {})
    problems = backend.check(version_with(tmp_path, mixed, **limits))
    assert [(problem.field, expected in problem.expected) for problem in problems] == [
        (field, True)
    ]
