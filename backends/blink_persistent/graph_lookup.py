"""The tables that pick a graph of the grid in O(1), and the graphs with which a version begins.

They map every admissible step to the smallest key that holds it; a step that no key holds exactly
goes to the largest shape, which must hold everything (paper section 4.2, "CUDA graph cache"). A
mixed step that no key holds is a prefill, then a decode step.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from blink_persistent import _native
from blink_persistent.graph_grid import DECODE, MIXED, PREFILL, GraphGrid, GraphKey, sizes_up_to

NO_GRAPH: int = _native.NO_GRAPH
"""In the table of mixed keys: no graph holds the step."""


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
            raise ValueError(
                f"the key of {key.sequences} sequences, {key.tokens} tokens and {key.rows} rows "
                "goes beyond the largest decode or prefill key"
            )
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


def coarse_part(grid: GraphGrid) -> list[int]:
    """Numbers of the graphs with which a version can begin to serve, in ascending order.

    For each power of two (decode: rows; prefill: tokens) the smallest key that holds it, for one
    sequence and for the most; the largest keys are among them. Of the mixed keys, by tokens in the
    same way, those for the most rows that it has.
    """
    granularity = min(key.tokens for _, key in grid.of_phase(PREFILL))
    decode, prefill = decode_lookup(grid), prefill_lookup(grid, granularity)
    rows = [size - 1 for size in sizes_up_to(grid.max_rows, 1, 1)]
    tokens = [
        -(-size // granularity) - 1 for size in sizes_up_to(grid.max_prefill_tokens, granularity, 1)
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
    sizes = sizes_up_to(max(widest, default=(0, 0))[0], granularity, 1)
    return {min(each for each in widest if each[0] >= size)[1] for size in sizes}
