"""Lookup tables name the smallest graph that holds a step, for every step there can be."""

from __future__ import annotations

import random
from typing import Any

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
from blink_persistent.graph_lookup import (
    NO_GRAPH,
    coarse_part,
    decode_lookup,
    mixed_lookup,
    prefill_lookup,
)


@st.composite
def grids(draw: st.DrawFn) -> GraphGrid:
    decode = draw(st.sets(st.integers(1, 40), min_size=1, max_size=6))
    sizes = st.tuples(st.integers(1, 6), st.integers(2, 300))
    prefill = draw(st.sets(sizes, min_size=1, max_size=8))
    largest = (max(s for s, _ in prefill), max(t for _, t in prefill))
    keys = sorted(GraphKey(DECODE, rows, rows) for rows in decode)
    return GraphGrid((*keys, *sorted(GraphKey(PREFILL, *key) for key in prefill | {largest})))


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(grid=grids(), granularity=st.integers(1, 64))
def test_every_step_gets_the_smallest_graph_that_holds_it(
    grid: GraphGrid, granularity: int
) -> None:
    decodes = [key for _, key in grid.of_phase(DECODE)]
    table = decode_lookup(grid)
    for rows in range(1, grid.max_rows + 1):
        key = grid.keys[table[rows - 1]]
        assert key.phase == DECODE
        assert key.sequences == min(k.sequences for k in decodes if k.sequences >= rows)
    prefills = [key for _, key in grid.of_phase(PREFILL)]
    lookup = prefill_lookup(grid, granularity)
    for sequences in range(1, grid.max_sequences + 1):
        for column in range(lookup.shape[1]):
            tokens = min((column + 1) * granularity, grid.max_prefill_tokens)
            key = grid.keys[lookup[sequences - 1, column]]
            assert key.phase == PREFILL
            holds = [k for k in prefills if k.sequences >= sequences and k.tokens >= tokens]
            assert key in holds
            assert key.tokens == min(k.tokens for k in holds)


@st.composite
def mixed_grids(draw: st.DrawFn) -> GraphGrid:
    """Grids that may have mixed keys, of any tokens and rows within their limits."""
    grid = draw(grids())
    sizes = st.tuples(st.integers(1, grid.max_prefill_tokens), st.integers(1, grid.max_rows))
    sequences = draw(st.integers(1, grid.max_sequences))
    mixed = draw(st.sets(sizes, max_size=8))
    return GraphGrid((*grid.keys, *(GraphKey(MIXED, sequences, *key) for key in sorted(mixed))))


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(grid=mixed_grids(), granularity=st.integers(1, 64), chance=st.randoms())
def test_every_mixed_step_gets_the_graph_that_computes_least_or_none(
    grid: GraphGrid, granularity: int, chance: random.Random
) -> None:
    some = {graph for graph in range(len(grid.keys)) if chance.random() < 0.7}
    for available in (None, some):
        table = mixed_lookup(grid, granularity, available)
        assert table.shape == (grid.max_rows, -(-grid.max_mixed_tokens // granularity))
        for (row, column), graph in np.ndenumerate(table):
            tokens = min((column + 1) * granularity, grid.max_mixed_tokens)
            holds = [
                key
                for number, key in grid.of_phase(MIXED)
                if key.rows > row and key.tokens >= tokens and number in (available or {number})
            ]
            assert (graph == NO_GRAPH) == (not holds)
            if holds:
                assert grid.keys[graph] in holds
                assert grid.keys[graph].all_tokens == min(key.all_tokens for key in holds)


@pytest.mark.parametrize(
    ("mixed", "match"),
    [
        ([(1, 16, 2), (2, 16, 4)], "the same number of sequences"),
        ([(5, 16, 2)], "goes beyond the largest"),
        ([(4, 257, 2)], "goes beyond the largest"),
        ([(4, 16, 9)], "goes beyond the largest"),
    ],
)
def test_mixed_keys_beyond_the_others_are_refused(
    mixed: list[tuple[int, int, int]], match: str
) -> None:
    keys = default_grid(8, 256, max_sequences=4).keys
    with pytest.raises(ValueError, match=match):
        mixed_lookup(GraphGrid((*keys, *(GraphKey(MIXED, *key) for key in mixed))), 16)


def test_a_grid_whose_largest_prefill_key_does_not_hold_every_step_is_refused() -> None:
    keys = (GraphKey(DECODE, 1, 1), GraphKey(PREFILL, 1, 64), GraphKey(PREFILL, 4, 32))
    with pytest.raises(ValueError, match=r"\(1 sequences, 64 tokens\) must hold 4 sequences"):
        prefill_lookup(GraphGrid(keys), 16)


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"decode_lookup": [0, 1]}, "one entry a row"),
        ({"decode_lookup": [0, 0, 1]}, "too small for its step"),
        ({"decode_lookup": [0, 1, 2]}, "another phase"),
        ({"decode_lookup": [0, 1, 9]}, "another phase or beyond"),
        ({"prefill_lookup": [2]}, "token columns"),
        ({"prefill_lookup": [2, 3]}, "too small for its step"),
        ({"graphs": []}, "1 to 65535 keys"),
        ({"token_granularity": 0}, "granularity must be positive"),
        ({"block_size": 1}, "must cover the context length"),
        ({"block_count": 1}, "the null block and at least one more"),
        (
            {
                **{"max_prefill_tokens": 1, "prefill_lookup": [2]},
                **{"max_mixed_tokens": 0, "mixed_lookup": []},
            },
            "must hold two tokens",
        ),
        ({"prefill_chunk": 1}, "prefill chunk: 2 tokens"),
        ({"prefill_chunk": 33}, "prefill chunk: 2 tokens"),
        ({"mixed_lookup": [4, 4]}, "max_rows x token columns"),
        ({"max_mixed_tokens": 17}, "max_rows x token columns"),
        ({"max_mixed_tokens": 1}, "two tokens at least"),
        ({"mixed_sequences": 2}, "within the limits of prefill"),
        ({"mixed_lookup": [4, 4, 4]}, "too few or too many rows"),
        ({"mixed_lookup": [4, 3, _native.NO_GRAPH]}, "another phase"),
        ({"mixed_lookup": [9, 4, _native.NO_GRAPH]}, "another phase or beyond"),
    ],
)
def test_tables_that_do_not_fit_the_engine_are_refused(changed: dict[str, Any], match: str) -> None:
    arguments: dict[str, Any] = {
        "graphs": [(0, 1, 1, 0), (0, 3, 3, 0), (1, 1, 32, 0), (1, 1, 16, 0), (2, 1, 16, 2)],
        "decode_lookup": [0, 1, 1],
        "prefill_lookup": [3, 2],
        "mixed_lookup": [4, 4, _native.NO_GRAPH],
        "eos_token_ids": [2],
        "max_rows": 3,
        "max_sequences": 1,
        "max_prefill_tokens": 32,
        "token_granularity": 16,
        "mixed_sequences": 1,
        "max_mixed_tokens": 16,
        "context_length": 96,
        "vocabulary_size": 101,
        "block_size": 4,
        "block_count": 8,
        "max_blocks": 24,
        "rows_movable": True,
    }
    _native.make_engine(**arguments)
    with pytest.raises(ValueError, match=match):
        _native.make_engine(**(arguments | changed))


def test_a_version_can_begin_with_a_coarse_part_of_its_grid() -> None:
    grid = fine_grid(64, 2048, max_sequences=8, granularity=16)
    coarse = coarse_part(grid)
    assert [grid.keys[graph].sequences for graph in coarse if graph < 64] == [
        *(1, 2, 4, 8, 16, 32, 64)
    ]
    assert len(coarse) == 7 + 2 * 8
    decode, prefill = decode_lookup(grid, coarse), prefill_lookup(grid, 16, coarse)
    assert {*decode.tolist(), *prefill.ravel().tolist()} == set(coarse)
    assert grid.keys[decode[32]] == GraphKey(DECODE, 64, 64)
    assert grid.keys[prefill[1, 64]] == GraphKey(PREFILL, 8, 2048)
    assert grid.keys[prefill[0, 63]] == GraphKey(PREFILL, 1, 1024)


def test_of_its_mixed_keys_it_begins_with_those_for_most_rows() -> None:
    limits: dict[str, int] = {"max_sequences": 8, "granularity": 16}
    grid = fine_grid(64, 2048, **limits, max_mixed_tokens=400)
    coarse = coarse_part(grid)
    plain = coarse_part(grid.without_mixed())
    assert coarse[: len(plain)] == plain
    mixed = [grid.keys[graph] for graph in coarse[len(plain) :]]
    assert mixed == [GraphKey(MIXED, 8, tokens, 64) for tokens in (16, 32, 64, 128, 256, 400)]
    table = mixed_lookup(grid, 16, coarse)
    assert set(table.ravel().tolist()) == set(coarse[len(plain) :])


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(grid=grids(), granularity=st.integers(1, 64), chance=st.randoms())
def test_tables_name_only_graphs_that_are_available(
    grid: GraphGrid, granularity: int, chance: random.Random
) -> None:
    available = set(coarse_part(grid)) | set(chance.sample(range(len(grid.keys)), 1))
    whole = decode_lookup(grid)
    for rows, graph in enumerate(decode_lookup(grid, available), 1):
        assert graph in available
        assert grid.keys[graph].sequences >= rows
        assert (graph == whole[rows - 1]) or whole[rows - 1] not in available
    table = prefill_lookup(grid, granularity, available)
    assert set(table.ravel().tolist()) <= available
    for (few, column), graph in np.ndenumerate(table):
        key = grid.keys[graph]
        assert key.sequences > few
        assert key.tokens >= min((column + 1) * granularity, grid.max_prefill_tokens)


@pytest.mark.parametrize("missing", [GraphKey(DECODE, 8, 8), GraphKey(PREFILL, 4, 256)])
def test_the_largest_keys_must_be_available(missing: GraphKey) -> None:
    grid = default_grid(8, 256, max_sequences=4)
    rest = set(range(len(grid.keys))) - {grid.keys.index(missing)}
    with pytest.raises(ValueError, match=r"must be available|must hold 4 sequences"):
        decode_lookup(grid, rest), prefill_lookup(grid, 16, rest)
