"""The graph grid: which steps are captured, and the tables that pick one in O(1).

A decode key is a number of rows; a prefill key is (sequences, tokens). The tables map every
admissible step to the smallest key that holds it; a step that no key holds exactly goes to the
largest shape, which must hold everything (paper section 4.2, "CUDA graph cache").
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

DECODE = 0
PREFILL = 1


@dataclass(frozen=True, slots=True, order=True)
class GraphKey:
    """One launchable step: `sequences` rows or prompts, `tokens` packed tokens (decode: rows)."""

    phase: int
    sequences: int
    tokens: int


@dataclass(frozen=True, slots=True)
class GraphGrid:
    """All keys of a version; a graph's number is its place in `keys`, decode keys first."""

    keys: tuple[GraphKey, ...]

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> GraphGrid:
        """The grid of a graph_grid.json that has passed its schema."""
        decode = [GraphKey(DECODE, key["rows"], key["rows"]) for key in document["decode"]]
        prefill = [GraphKey(PREFILL, k["sequences"], k["tokens"]) for k in document["prefill"]]
        return cls(tuple(sorted(decode) + sorted(prefill)))

    def to_json(self) -> dict[str, Any]:
        """The document that `from_json` reads."""
        return {
            "decode": [{"rows": k.sequences} for k in self.keys if k.phase == DECODE],
            "prefill": [
                {"sequences": k.sequences, "tokens": k.tokens}
                for k in self.keys
                if k.phase == PREFILL
            ],
        }

    def of_phase(self, phase: int) -> list[tuple[int, GraphKey]]:
        """(graph number, key) of one phase."""
        return [(graph, key) for graph, key in enumerate(self.keys) if key.phase == phase]

    @property
    def max_rows(self) -> int:
        return max(key.sequences for _, key in self.of_phase(DECODE))

    @property
    def max_sequences(self) -> int:
        return max(key.sequences for _, key in self.of_phase(PREFILL))

    @property
    def max_prefill_tokens(self) -> int:
        return max(key.tokens for _, key in self.of_phase(PREFILL))


def decode_lookup(
    grid: GraphGrid, available: Collection[int] | None = None
) -> npt.NDArray[np.uint16]:
    """uint16 [max_rows]: rows - 1 -> graph number, of the `available` graphs (all, if not given).

    Raises ValueError where the largest decode key is not available.
    """
    keys = _available(grid, DECODE, available)
    sizes = np.array([key.sequences for _, key in keys])
    graphs = np.array([graph for graph, _ in keys], np.uint16)
    if not len(sizes) or sizes[-1] != grid.max_rows:
        raise ValueError(f"the decode key of {grid.max_rows} rows must be available")
    return graphs[np.searchsorted(sizes, np.arange(1, grid.max_rows + 1))]


def prefill_lookup(
    grid: GraphGrid, granularity: int, available: Collection[int] | None = None
) -> npt.NDArray[np.uint16]:
    """uint16 [max_sequences, ceil(max_prefill_tokens / granularity)] -> graph number.

    Column c stands for up to (c + 1) * granularity tokens; only `available` graphs are named (all,
    if not given). Raises ValueError where their largest key cannot hold every step.
    """
    keys = _available(grid, PREFILL, available)
    largest = max(keys, key=lambda item: (item[1].tokens, item[1].sequences))
    if (largest[1].tokens, largest[1].sequences) != (grid.max_prefill_tokens, grid.max_sequences):
        raise ValueError(
            f"the largest prefill key ({largest[1].sequences} sequences, {largest[1].tokens} "
            f"tokens) must hold {grid.max_sequences} sequences: it serves what no other key holds"
        )
    columns = -(-grid.max_prefill_tokens // granularity)
    table = np.full((grid.max_sequences, columns), largest[0], np.uint16)
    best_tokens = np.full(table.shape, largest[1].tokens, np.int64)
    for graph, key in sorted(keys, key=lambda item: (-item[1].tokens, -item[1].sequences)):
        held = key.tokens // granularity if key.tokens < grid.max_prefill_tokens else columns
        cells = np.s_[: key.sequences, :held]
        better = best_tokens[cells] >= key.tokens
        table[cells][better] = graph
        best_tokens[cells][better] = key.tokens
    return table


def _available(
    grid: GraphGrid, phase: int, available: Collection[int] | None
) -> list[tuple[int, GraphKey]]:
    """(graph number, key) of one phase's available graphs, in the grid's order."""
    keys = grid.of_phase(phase)
    return keys if available is None else [item for item in keys if item[0] in available]


def default_grid(
    max_rows: int, max_prefill_tokens: int, *, max_sequences: int = 1, smallest_prefill: int = 16
) -> GraphGrid:
    """Powers of two up to the limits, and the limits themselves."""
    return _grid(
        _sizes(max_rows, 1, 1),
        _sizes(max_sequences, 1, 1),
        _sizes(max_prefill_tokens, smallest_prefill, 1),
    )


def fine_grid(
    max_rows: int, max_prefill_tokens: int, *, max_sequences: int, granularity: int
) -> GraphGrid:
    """A grid by which no step computes much more than it has to, for engines with cheap graphs.

    At most 1/32 of a decode step's rows and of a prefill step's tokens are padding, beyond the
    `granularity` in which tokens are looked up; at most half of its sequences are (they cost
    little). 64 rows, 2,048 tokens and 8 sequences make 640 keys, 256 rows make 704.
    """
    return _grid(
        _sizes(max_rows, 1, 32),
        _sizes(max_sequences, 1, 2),
        _sizes(max_prefill_tokens, granularity, 32),
    )


def coarse_part(grid: GraphGrid) -> list[int]:
    """Numbers of the graphs with which a version can begin to serve, in ascending order.

    For each power of two (decode: rows; prefill: tokens) the smallest key that holds it, for one
    sequence and for the most; the largest keys are among them.
    """
    granularity = min(key.tokens for _, key in grid.of_phase(PREFILL))
    decode, prefill = decode_lookup(grid), prefill_lookup(grid, granularity)
    rows = [size - 1 for size in _sizes(grid.max_rows, 1, 1)]
    tokens = [
        -(-size // granularity) - 1 for size in _sizes(grid.max_prefill_tokens, granularity, 1)
    ]
    return sorted({*decode[rows].tolist(), *prefill[[[0], [-1]], tokens].ravel().tolist()})


def _sizes(limit: int, step: int, fineness: int) -> list[int]:
    """Multiples of `step` up to `limit`, and `limit`; from one to the next the distance is at most
    1/`fineness` of the size, and a power of two of steps."""
    sizes, size, distance = [], step, step
    while size < limit:
        sizes.append(size)
        if size >= 2 * fineness * distance:
            distance *= 2
        size += distance
    return [*sizes, limit]


def _grid(rows: list[int], sequences: list[int], tokens: list[int]) -> GraphGrid:
    decode = [GraphKey(DECODE, each, each) for each in rows]
    prefill = [GraphKey(PREFILL, few, many) for few in sequences for many in tokens]
    return GraphGrid(tuple(decode + prefill))
