"""The graph grid: which steps are captured.

A decode key is a number of rows; a prefill key is (sequences, tokens); a mixed key is both, so that
one step reads the weights once for a chunk of prompts and for the rows that decode. A grid may have
no mixed keys. `graph_lookup.py` picks the key of a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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


def default_grid(
    max_rows: int,
    max_prefill_tokens: int,
    *,
    max_sequences: int = 1,
    smallest_prefill: int = 16,
    max_mixed_tokens: int = 0,
) -> GraphGrid:
    """Powers of two up to the limits, and the limits themselves; mixed keys if asked for."""
    rows = sizes_up_to(max_rows, 1, 1)
    return _grid(
        rows,
        sizes_up_to(max_sequences, 1, 1),
        sizes_up_to(max_prefill_tokens, smallest_prefill, 1),
        mixed_tokens=sizes_up_to(max_mixed_tokens, smallest_prefill, 1),
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
    sequences make 640 keys, 256 rows make 704; mixed keys of up to 608 tokens are 104 and 156 more.
    """
    return _grid(
        sizes_up_to(max_rows, 1, 32),
        sizes_up_to(max_sequences, 1, 2),
        sizes_up_to(max_prefill_tokens, granularity, 32),
        mixed_tokens=sizes_up_to(max_mixed_tokens, granularity, 8),
        mixed_rows=sizes_up_to(max_rows, _FEWEST_MIXED_ROWS, 1),
    )


def sizes_up_to(limit: int, step: int, fineness: int) -> list[int]:
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
