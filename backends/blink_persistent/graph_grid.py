"""The graph grid: which steps are captured, and the tables that pick one in O(1).

A decode key is a number of rows; a prefill key is (sequences, tokens). The tables map every
admissible step to the smallest key that holds it; a step that no key holds exactly goes to the
largest shape, which must hold everything (paper section 4.2, "CUDA graph cache").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


def decode_lookup(grid: GraphGrid) -> npt.NDArray[np.uint16]:
    """uint16 [max_rows]: rows - 1 -> graph number."""
    keys = grid.of_phase(DECODE)
    table = np.empty(grid.max_rows, np.uint16)
    for rows in range(1, grid.max_rows + 1):
        table[rows - 1] = min((k.sequences, graph) for graph, k in keys if k.sequences >= rows)[1]
    return table


def prefill_lookup(grid: GraphGrid, granularity: int) -> npt.NDArray[np.uint16]:
    """uint16 [max_sequences, ceil(max_prefill_tokens / granularity)] -> graph number.

    Column c stands for up to (c + 1) * granularity tokens. Raises ValueError where the largest
    key cannot hold every step.
    """
    keys = grid.of_phase(PREFILL)
    largest = max(keys, key=lambda item: (item[1].tokens, item[1].sequences))
    if largest[1].sequences < grid.max_sequences:
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


def default_grid(
    max_rows: int, max_prefill_tokens: int, *, max_sequences: int = 1, smallest_prefill: int = 16
) -> GraphGrid:
    """Powers of two up to the limits, and the limits themselves."""

    def doublings(first: int, last: int) -> Sequence[int]:
        steps = [first]
        while steps[-1] * 2 < last:
            steps.append(steps[-1] * 2)
        return sorted({min(step, last) for step in steps} | {last})

    decode = [GraphKey(DECODE, rows, rows) for rows in doublings(1, max_rows)]
    prefill = [
        GraphKey(PREFILL, sequences, tokens)
        for sequences in doublings(1, max_sequences)
        for tokens in doublings(smallest_prefill, max_prefill_tokens)
    ]
    return GraphGrid(tuple(decode + prefill))
