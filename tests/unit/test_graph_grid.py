"""Keys of the graph grid, its file, and the grids that are made."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blink_persistent import _native
from blink_persistent.graph_grid import (
    DECODE,
    MIXED,
    PREFILL,
    GraphGrid,
    GraphKey,
    default_grid,
    fine_grid,
)
from blink_persistent.graph_lookup import decode_lookup, mixed_lookup, prefill_lookup

SCHEMA = Path(__file__).parents[2] / "schemas" / "graph_grid.schema.json"


def test_a_mixed_key_is_a_decode_and_a_prefill_key() -> None:
    assert GraphKey(MIXED, 4, 512, 64).parts == (
        GraphKey(DECODE, 64, 64),
        GraphKey(PREFILL, 4, 512),
    )
    assert GraphKey(PREFILL, 4, 512).parts == (GraphKey(PREFILL, 4, 512),)
    assert [GraphKey(MIXED, 4, 512, 64).all_tokens, GraphKey(DECODE, 8, 8).all_tokens] == [576, 8]


def test_json_keeps_a_grid_and_obeys_its_schema() -> None:
    grid = default_grid(8, 256, max_sequences=4, max_mixed_tokens=100)
    assert [key for _, key in grid.of_phase(MIXED)][-1] == GraphKey(MIXED, 4, 100, 8)
    document = json.loads(json.dumps(grid.to_json()))
    jsonschema.validate(document, json.loads(SCHEMA.read_text()))
    assert GraphGrid.from_json(document) == grid
    assert "mixed" not in grid.without_mixed().to_json()
    shuffled = {phase: keys[::-1] for phase, keys in document.items()}
    assert GraphGrid.from_json(shuffled) == grid


@pytest.mark.parametrize(("rows", "tokens", "sequences"), [(1, 16, 1), (6, 200, 3), (64, 10, 8)])
def test_the_default_grid_ends_in_its_limits(rows: int, tokens: int, sequences: int) -> None:
    grid = default_grid(rows, tokens, max_sequences=sequences)
    assert (grid.max_rows, grid.max_prefill_tokens, grid.max_sequences) == (rows, tokens, sequences)
    assert GraphKey(DECODE, 1, 1) in grid.keys
    assert len(set(grid.keys)) == len(grid.keys)
    assert prefill_lookup(grid, 16).shape == (sequences, -(-tokens // 16))


def test_the_numbers_of_graphs_are_their_places() -> None:
    grid = default_grid(4, 64)
    for phase in (DECODE, PREFILL):
        assert all(grid.keys[graph] == key for graph, key in grid.of_phase(phase))
    assert decode_lookup(grid).dtype == prefill_lookup(grid, 16).dtype == np.uint16


@pytest.mark.parametrize(("rows", "keys"), [(64, 640), (128, 672), (256, 704)])
def test_a_fine_grid_has_as_many_keys_as_it_says(rows: int, keys: int) -> None:
    limits: dict[str, int] = {"max_sequences": 8, "granularity": 16}
    assert len(fine_grid(rows, 2048, **limits).keys) == keys
    mixed = len(fine_grid(rows, 2048, **limits, max_mixed_tokens=608).keys) - keys
    assert mixed == {64: 104, 128: 130, 256: 156}[rows]
    assert keys + mixed <= _native.SHOWN_GRAPHS


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(
    rows=st.integers(1, 300),
    tokens=st.integers(2, 3000),
    sequences=st.integers(1, 20),
    granularity=st.sampled_from([1, 8, 16]),
)
def test_a_fine_grid_pads_little(rows: int, tokens: int, sequences: int, granularity: int) -> None:
    grid = fine_grid(
        rows, tokens, max_sequences=sequences, granularity=granularity, max_mixed_tokens=tokens
    )
    assert (grid.max_rows, grid.max_prefill_tokens, grid.max_sequences) == (rows, tokens, sequences)
    assert len(set(grid.keys)) == len(grid.keys)
    for held, graph in enumerate(decode_lookup(grid), 1):
        assert grid.keys[graph].sequences - held <= held / 32
    table = prefill_lookup(grid, granularity)
    for place, graph in np.ndenumerate(table):
        key, least = grid.keys[graph], min((place[1] + 1) * granularity, tokens)
        assert key.tokens - least <= max(least / 32, granularity - 1)
        assert key.sequences - (place[0] + 1) <= (place[0] + 1) / 2
    for place, graph in np.ndenumerate(mixed_lookup(grid, granularity)):
        key, least = grid.keys[graph], min((place[1] + 1) * granularity, tokens)
        assert key.tokens - least <= max(least / 8, granularity - 1)
        assert key.rows - (place[0] + 1) <= max(place[0], 7)
