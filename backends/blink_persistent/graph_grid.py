"""The graph grid: which steps are captured, and the tables that pick one in O(1).

A decode key is a number of rows; a prefill key is (sequences, tokens); a mixed key is both, so that
one step reads the weights once for a chunk of prompts and for the rows that decode. The tables map
every admissible step to the smallest key that holds it; a step that no key holds exactly goes to
the largest shape, which must hold everything (paper section 4.2, "CUDA graph cache"). A grid may
have no mixed keys: what none of them holds is a prefill, then a decode step.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from blink_persistent import _native
from blink_server.backend import ModelVersion
from blink_server.config import load_graph_grid

DECODE = 0
PREFILL = 1
MIXED = 2
_FEWEST_MIXED_ROWS = 8  # a row costs little beside a chunk of prompts
PHASES = ("decode", "prefill", "mixed")
"""Names of the phases, by number."""

TURNS = "alternating"
"""The limit `prefill` of a version whose mixed keys are not used."""

NO_GRAPH: int = _native.NO_GRAPH
"""In the table of mixed keys: no graph holds the step."""


@dataclass(frozen=True, slots=True, order=True)
class GraphKey:
    """One launchable step: `sequences` rows or prompts, `tokens` packed tokens (decode: rows).

    A mixed one is a prefill of `sequences` and `tokens` beside a decode step of `rows`.
    """

    phase: int
    sequences: int
    tokens: int
    rows: int = 0

    @property
    def parts(self) -> tuple[GraphKey, ...]:
        """What it does in the step buffers of decode and prefill: itself, or both parts."""
        if self.phase != MIXED:
            return (self,)
        return (
            GraphKey(DECODE, self.rows, self.rows),
            GraphKey(PREFILL, self.sequences, self.tokens),
        )

    @property
    def all_tokens(self) -> int:
        """Tokens that the step computes, of prompts and rows together."""
        return self.tokens + self.rows


@dataclass(frozen=True, slots=True)
class GraphGrid:
    """All keys of a version; a graph's number is its place in `keys`: decode, prefill, mixed."""

    keys: tuple[GraphKey, ...]

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> GraphGrid:
        """The grid of a graph_grid.json that has passed its schema."""
        decode = [GraphKey(DECODE, key["rows"], key["rows"]) for key in document["decode"]]
        prefill = [GraphKey(PREFILL, k["sequences"], k["tokens"]) for k in document["prefill"]]
        mixed = [
            GraphKey(MIXED, k["sequences"], k["tokens"], k["rows"])
            for k in document.get("mixed", ())
        ]
        return cls(tuple(sorted(decode) + sorted(prefill) + sorted(mixed)))

    def to_json(self) -> dict[str, Any]:
        """The document that `from_json` reads."""
        document = {
            "decode": [{"rows": k.sequences} for k in self.keys if k.phase == DECODE],
            "prefill": [
                {"sequences": k.sequences, "tokens": k.tokens}
                for k in self.keys
                if k.phase == PREFILL
            ],
        }
        mixed = [key for _, key in self.of_phase(MIXED)]
        if mixed:
            document["mixed"] = [
                {"sequences": k.sequences, "tokens": k.tokens, "rows": k.rows} for k in mixed
            ]
        return document

    def of_phase(self, phase: int) -> list[tuple[int, GraphKey]]:
        """(graph number, key) of one phase."""
        return [(graph, key) for graph, key in enumerate(self.keys) if key.phase == phase]

    def without_mixed(self) -> GraphGrid:
        """The same grid, by which prefill and decode take turns."""
        return GraphGrid(tuple(key for key in self.keys if key.phase != MIXED))

    @property
    def max_rows(self) -> int:
        return max(key.sequences for _, key in self.of_phase(DECODE))

    @property
    def max_sequences(self) -> int:
        return max(key.sequences for _, key in self.of_phase(PREFILL))

    @property
    def max_prefill_tokens(self) -> int:
        return max(key.tokens for _, key in self.of_phase(PREFILL))

    @property
    def mixed_sequences(self) -> int:
        """Sequences of every mixed key; 0 where there is none."""
        return max((key.sequences for _, key in self.of_phase(MIXED)), default=0)

    @property
    def max_mixed_tokens(self) -> int:
        """Prompt tokens of the longest mixed key; 0 where there is none."""
        return max((key.tokens for _, key in self.of_phase(MIXED)), default=0)


def grid_of(version: ModelVersion) -> GraphGrid:
    """What a version's config leaves of its graph_grid.json, which has passed its schema.

    Deterministic versions mix nothing: a row would be rounded as the prompts beside it have it.
    """
    grid = GraphGrid.from_json(load_graph_grid(version.directory))
    turns = version.config["limits"].get("prefill") == TURNS
    return grid.without_mixed() if turns or version.config.get("deterministic") else grid


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


def mixed_lookup(
    grid: GraphGrid, granularity: int, available: Collection[int] | None = None
) -> npt.NDArray[np.uint16]:
    """uint16 [max_rows, ceil(max_mixed_tokens / granularity)]: rows - 1, column -> graph number.

    Columns are those of `prefill_lookup`. Of the `available` graphs (all, if not given) it names
    the one that computes least, NO_GRAPH where none holds the step. Raises ValueError where mixed
    keys differ in sequences or go beyond the limits of the others.
    """
    mixed = [key for _, key in grid.of_phase(MIXED)]
    for key in mixed:
        if key.sequences != grid.mixed_sequences:
            raise ValueError("all mixed keys must have the same number of sequences")
        if (
            key.sequences > grid.max_sequences
            or key.tokens > grid.max_prefill_tokens
            or key.rows > grid.max_rows
        ):
            raise ValueError(f"{key} goes beyond the largest decode or prefill key")
    columns = -(-grid.max_mixed_tokens // granularity)
    table = np.full((grid.max_rows, columns), NO_GRAPH, np.uint16)
    least_first = sorted(
        _available(grid, MIXED, available), key=lambda item: (item[1].all_tokens, item[1].tokens)
    )
    for graph, key in reversed(least_first):
        held = key.tokens // granularity if key.tokens < grid.max_mixed_tokens else columns
        table[: key.rows, :held] = graph
    return table


def _available(
    grid: GraphGrid, phase: int, available: Collection[int] | None
) -> list[tuple[int, GraphKey]]:
    """(graph number, key) of one phase's available graphs, in the grid's order."""
    keys = grid.of_phase(phase)
    return keys if available is None else [item for item in keys if item[0] in available]


def default_grid(
    max_rows: int,
    max_prefill_tokens: int,
    *,
    max_sequences: int = 1,
    smallest_prefill: int = 16,
    max_mixed_tokens: int = 0,
) -> GraphGrid:
    """Powers of two up to the limits, and the limits themselves; mixed keys if asked for."""
    rows = _sizes(max_rows, 1, 1)
    return _grid(
        rows,
        _sizes(max_sequences, 1, 1),
        _sizes(max_prefill_tokens, smallest_prefill, 1),
        mixed_tokens=_sizes(max_mixed_tokens, smallest_prefill, 1),
        mixed_rows=rows,
    )


def fine_grid(
    max_rows: int,
    max_prefill_tokens: int,
    *,
    max_sequences: int,
    granularity: int,
    max_mixed_tokens: int = 0,
) -> GraphGrid:
    """A grid by which no step computes much more than it has to, for engines with cheap graphs.

    At most 1/32 of a decode step's rows and of a prefill step's tokens are padding, beyond the
    `granularity` in which tokens are looked up; at most half of its sequences are (they cost
    little). With `max_mixed_tokens` it has mixed keys too, of up to so many prompt tokens, of which
    at most 1/8 are padding; up to half of their rows are, beyond 8. 64 rows, 2,048 tokens and 8
    sequences make 640 keys, 256 rows make 704; mixed keys of up to 512 tokens are 96 and 144 more.
    """
    return _grid(
        _sizes(max_rows, 1, 32),
        _sizes(max_sequences, 1, 2),
        _sizes(max_prefill_tokens, granularity, 32),
        mixed_tokens=_sizes(max_mixed_tokens, granularity, 8),
        mixed_rows=_sizes(max_rows, _FEWEST_MIXED_ROWS, 1),
    )


def coarse_part(grid: GraphGrid) -> list[int]:
    """Numbers of the graphs with which a version can begin to serve, in ascending order.

    For each power of two (decode: rows; prefill: tokens) the smallest key that holds it, for one
    sequence and for the most; the largest keys are among them. Of the mixed keys, by tokens in the
    same way, those for the most rows that it has.
    """
    granularity = min(key.tokens for _, key in grid.of_phase(PREFILL))
    decode, prefill = decode_lookup(grid), prefill_lookup(grid, granularity)
    rows = [size - 1 for size in _sizes(grid.max_rows, 1, 1)]
    tokens = [
        -(-size // granularity) - 1 for size in _sizes(grid.max_prefill_tokens, granularity, 1)
    ]
    return sorted(
        {
            *decode[rows].tolist(),
            *prefill[[[0], [-1]], tokens].ravel().tolist(),
            *_coarse_mixed(grid, granularity),
        }
    )


def _coarse_mixed(grid: GraphGrid, granularity: int) -> set[int]:
    """The mixed part of `coarse_part`."""
    mixed = grid.of_phase(MIXED)
    most = max((key.rows for _, key in mixed), default=0)
    widest = [(key.tokens, graph) for graph, key in mixed if key.rows == most]
    sizes = _sizes(max(widest, default=(0, 0))[0], granularity, 1)
    return {min(each for each in widest if each[0] >= size)[1] for size in sizes}


def _sizes(limit: int, step: int, fineness: int) -> list[int]:
    """Multiples of `step` up to `limit`, and `limit`; from one to the next the distance is at most
    1/`fineness` of the size, and a power of two of steps. Nothing up to 0."""
    sizes, size, distance = [], step, step
    while size < limit:
        sizes.append(size)
        if size >= 2 * fineness * distance:
            distance *= 2
        size += distance
    return [*sizes, limit] if limit else []


def _grid(
    rows: list[int],
    sequences: list[int],
    tokens: list[int],
    *,
    mixed_tokens: list[int],
    mixed_rows: list[int],
) -> GraphGrid:
    """All combinations, in the grid's order; mixed keys have the most sequences."""
    decode = [GraphKey(DECODE, each, each) for each in rows]
    prefill = [GraphKey(PREFILL, few, many) for few in sequences for many in tokens]
    mixed = [
        GraphKey(MIXED, sequences[-1], many, each) for many in mixed_tokens for each in mixed_rows
    ]
    return GraphGrid(tuple(decode + prefill + mixed))
