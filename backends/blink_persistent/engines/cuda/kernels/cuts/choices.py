"""How the kernels of a step are cut. What was measured to be fastest is in `hopper.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

from blink_persistent.engines.cuda.kernels.cuts.direct_attention_cut import DirectCut
from blink_persistent.engines.cuda.kernels.cuts.even_attention_cut import EvenCut
from blink_persistent.engines.cuda.kernels.cuts.layers_cut import LayersCut
from blink_persistent.engines.cuda.kernels.cuts.one_token_cut import OneTokenCut
from blink_persistent.engines.cuda.kernels.cuts.primed_cut import PrimedCut
from blink_persistent.engines.cuda.kernels.cuts.wide_cut import WideCut

LEAST_SPLIT = 128  # entries; a shorter share is not worth a program
MOST_SPLITS = 64
DOT_LEAST = 16  # the smallest side of a tile that the matrix units take
PREFILL_TILE = 64  # entries that a program of prefill attention takes at a time
QUERY_TILE = 128  # queries that it takes at most


@dataclass(frozen=True, slots=True)
class DecodeTiling:
    """How decode attention is cut: entries a tile, and programs that a processor holds at once.

    `stages` is Triton's: five keep block table, keys and values of two tiles under way.
    """

    tile: int = 32
    programs: int = 5
    warps: int = 4
    stages: int = 5

    def splits(self, rows: int, kv_heads: int, capacity: int, processors: int) -> int:
        """Programs along a row's entries, so that all rows together fill the processors."""
        wanted = self.programs * processors // (rows * kv_heads)
        return max(1, min(wanted, capacity // LEAST_SPLIT, MOST_SPLITS))


DEFAULT_TILING = DecodeTiling()


@dataclass(frozen=True, slots=True)
class PrefillTiling:
    """How prefill attention is cut: queries a program at most, a power of two. Not measured."""

    queries: int = QUERY_TILE
    warps: int = 8
    stages: int = 2


def prefill_tiling(tokens: int, heads: int, processors: int) -> PrefillTiling:
    """Half of the most queries where so few programs would not fill the processors."""
    if -(-tokens // QUERY_TILE) * heads >= processors:
        return PrefillTiling()
    return PrefillTiling(queries=QUERY_TILE // 2, warps=4)


@dataclass(frozen=True, slots=True)
class PageTiling:
    """How prefill attention for Hopper is cut.

    `stages`: pages of keys, and of values, that are held at once.
    """

    stages: int = 3


@dataclass(frozen=True, slots=True)
class Cut:
    """How `stream_product` is cut: `features` a program, the inner dimension in `splits` shares.

    A program reads tiles of `step` inner elements, of which `stages` - 1 are on their way. All
    programs read at the same pace, so their number should be just below a multiple of the
    processors': 128 of 131, or that many several times.
    """

    features: int
    step: int = 128
    splits: int = 1
    stages: int = 5
    warps: int = 4

    def fits(self, size: int, depth: int) -> bool:
        """Can a product with [size, depth] weights be cut so?"""
        return size % self.features == 0 and depth % (self.step * self.splits) == 0


ROW_TILES = (8, 16, 32, 64)
"""Rows that a streamed product computes; beyond the last one the library's products are used."""

AheadCut = PrimedCut | WideCut
"""Of products in CUDA C++, which read their first weights before the kernel ahead has ended."""

AnyCut = Cut | AheadCut
AnyAttention = DirectCut | EvenCut
"""Of attention in CUDA C++, which reads its first KV before then, too."""

Shape = tuple[int, int]
Cuts = Mapping[tuple[Shape, int], AnyCut]
"""By the shape of a weight, [out_features, in_features], and a number of `ROW_TILES`."""

PaddedRows = Mapping[Shape, Mapping[int, int]]
"""Rows that the library multiplies in place of fewer, since that is faster, by a weight's shape."""

Heads = tuple[int, int, int]
"""Heads, KV heads, and elements of a head."""

Mixture = tuple[int, int, int, int]
"""Experts, those chosen for a token, and an expert's hidden and intermediate size."""

Tilings = Mapping[tuple[Heads, int], DecodeTiling]
"""By a model's heads and a number of `ROW_TILES`."""


@dataclass(frozen=True, slots=True)
class StepChoices:
    """Which kernels of the engine's own the steps of one model have."""

    cuts: Cuts = field(default_factory=dict)
    attentions: Mapping[int, AnyAttention] = field(default_factory=dict)
    """In place of Triton's, by the most rows that a decode step with it has (`attention_tile`).

    Rows of mixed steps have it too, if it is an `EvenCut`.
    """
    norms: Set[int] = frozenset()
    """The numbers of `ROW_TILES` whose steps have the primed norm."""
    one_token_experts: OneTokenCut | None = None
    """In place of what `expert_tiling` says, in steps of one token."""
    layers: Mapping[int, LayersCut] = field(default_factory=dict)
    """All layers of a decode step in one kernel, by the most rows that each is for: in place of all
    others but the vocabulary's product and the norm before it, where the KV's blocks fit."""


@dataclass(frozen=True, slots=True)
class ExpertTiling:
    """How products with experts are cut: `rows` pairs of token and expert a block of one expert.

    A program computes `features` of a block, from tiles of up to `step` inner elements.
    """

    rows: int = 16
    features: int = 64
    step: int = 64
    stages: int = 5
    warps: int = 4


def expert_tiling(pairs: int, experts: int) -> ExpertTiling:
    """About as many rows as an expert gets on average, so that few are padding. Not measured."""
    if pairs < 32 * experts:
        return ExpertTiling(rows=16 if pairs < 16 * experts else 32)
    return ExpertTiling(rows=64, features=128, stages=4, warps=8)


def expert_blocks(pairs: int, experts: int, rows: int) -> int:
    """Blocks of `rows` pairs of one expert each that hold every routing of so many pairs."""
    touched = min(pairs, experts)
    return touched + (pairs - touched) // rows


def expert_order_room(tokens: int, experts: int, chosen: int) -> tuple[int, int]:
    """The most blocks that steps of up to `tokens` tokens need, and the most pairs in them."""
    blocks, places = 0, 0
    for pairs in range(chosen, tokens * chosen + 1, chosen):
        rows = expert_tiling(pairs, experts).rows
        needed = expert_blocks(pairs, experts, rows)
        blocks, places = max(blocks, needed), max(places, needed * rows)
    return blocks, places


def largest_step(depth: int, most: int) -> int:
    """The largest power of two up to `most`, itself one, that divides `depth`."""
    return min(most, depth & -depth)


def row_tile(rows: int) -> int | None:
    """The smallest of `ROW_TILES` that holds `rows`."""
    return next((tile for tile in ROW_TILES if rows <= tile), None)


def attention_tile(rows: int, cuts: Iterable[int]) -> int | None:
    """The smallest number that holds `rows`, of `ROW_TILES` and of those that `cuts` are for."""
    return min((tile for tile in {*ROW_TILES, *cuts} if rows <= tile), default=None)
