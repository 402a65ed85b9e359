"""Ways to cut kernels that read ahead, which engine_choices.py and primed_products.py try."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from blink_persistent.engines.cuda.kernels.ahead_products import AheadProducts
from blink_persistent.engines.cuda.kernels.attention_call import attends_ahead
from blink_persistent.engines.cuda.kernels.choices import AheadCut, AnyAttention, Shape
from blink_persistent.engines.cuda.kernels.direct_attention_cut import DirectCut
from blink_persistent.engines.cuda.kernels.even_attention_cut import EvenCut
from blink_persistent.engines.cuda.kernels.likely_cuts import PROCESSORS
from blink_persistent.engines.cuda.kernels.wide_cut import ALIGNMENT, WideCut
from blink_persistent.gpu.driver import Gpu
from blink_server.importers.checkpoint import Architecture

LEAST_WIDE = 16  # rows of `ROW_TILES` from which wide products are tried
MOST_SHARED_BYTES = 227 << 10  # that a block may have
MOST_STAGES = 10
LEAST_STAGES = 3
ALL_STAGES = (3, 4, 5, 6, 7, 8, 10, 12, 14)
FEATURES = range(16, 257, 8)
FEWEST_BLOCKS = 104  # that keep pace with the memory
WIDE_SPLITS = (1, 2, 4, 8)
GATED_PASSES = (1, 2, 3, 4, 5)
WHOLE_PASSES = range(1, 25)  # of the vocabulary's
TRIED = 12

EVEN_ATTENTIONS = (
    *(EvenCut(8, 6, 1), EvenCut(8, 4, 1), EvenCut(8, 2, 1), EvenCut(4, 6, 1)),
    *(EvenCut(4, 3, 2), EvenCut(4, 2, 2)),
)
ATTENTIONS: dict[int, tuple[AnyAttention, ...]] = {
    8: (
        DirectCut(warps=8, resident=1, clustered=True, most=8),
        DirectCut(clustered=True),
        *EVEN_ATTENTIONS,
    ),
    16: (DirectCut(programs=3), DirectCut(warps=8, resident=1), *EVEN_ATTENTIONS),
    32: EVEN_ATTENTIONS,
    64: EVEN_ATTENTIONS,
}
"""By numbers of `ROW_TILES`: the best that were measured in steps of Llama-3-8B, and for groups
of more heads some of fewer pages."""


def attentions_for(shape: Architecture, row_tile: int | None) -> list[AnyAttention]:
    """Those of `ATTENTIONS` that there are for a model's heads."""
    if row_tile is None or not attends_ahead(shape):
        return []
    size, group = shape.head_dim, shape.heads // shape.kv_heads
    return [
        cut
        for cut in ATTENTIONS.get(row_tile, ())
        if not isinstance(cut, EvenCut) or cut.fits(size, group)
    ]


class OneByOne:
    """Fulfils `RunAhead`, each cut in a module of its own, so that many are compiled at once."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._made: dict[tuple[AheadCut, int], AheadProducts] = {}

    def load(self, cut: AheadCut, row_tile: int) -> AheadProducts:
        """Raises DeviceCodeError or CudaError."""
        key = cut, row_tile
        if key not in self._made:
            self._made[key] = AheadProducts(self._gpu, {((0, 0), row_tile): cut})
        return self._made[key]

    def __call__(
        self, x: Any, weight: Any, out: Any, cut: AheadCut, row_tile: int, *, chained: bool
    ) -> None:
        """As `RunAhead`."""
        self.load(cut, row_tile)(x, weight, out, cut, row_tile, chained=chained)


def wide_candidates(shape: Shape, row_tile: int, *, gated: bool, in_parts: bool) -> list[WideCut]:
    """Those that leave the fewest multiprocessors idle, for each number of splits or passes.

    `shape` is that of the weight; `in_parts`: the result may be parts of a sum.
    """
    if row_tile < LEAST_WIDE:
        return []
    size, depth = shape[0] // (2 if gated else 1), shape[1]
    found = {
        cut: idle
        for features, splits, blocks, idle in _shares(size, gated=gated, in_parts=in_parts)
        for windows in (1, 2)
        for groups in _groups(features, gated=gated)
        if (cut := _cut(row_tile, features, splits, windows, groups, blocks, gated=gated))
        and cut.fits(size, depth)
    }
    return sorted(found, key=lambda cut: (found[cut], cut.windows))[:TRIED]


def with_other_stages(cut: AheadCut, row_tile: int) -> list[AheadCut]:
    """The same but for its stages, with each number that a block has room for.

    More keep more weights under way, fewer may leave room for a block of the next kernel.
    """
    offers = [replace(cut, stages=stages) for stages in ALL_STAGES if stages != cut.stages]
    return [
        offer for offer in offers if offer.shared_bytes(row_tile) + ALIGNMENT <= MOST_SHARED_BYTES
    ]


def _shares(
    size: int, *, gated: bool, in_parts: bool
) -> Iterator[tuple[int, int, int | None, float]]:
    """Features of a tile, splits, blocks, and the share of multiprocessors that has nothing."""
    for splits in WIDE_SPLITS if in_parts else (1,):
        for passes in GATED_PASSES if gated else (1,) if in_parts else WHOLE_PASSES:
            offers = []
            for features in FEATURES:
                tiles = -(-size // features)
                blocks = -(-tiles // passes)
                whole = not gated or size % features == 0
                if whole and FEWEST_BLOCKS <= blocks * splits <= PROCESSORS:
                    idle = 1 - tiles * splits / (passes * PROCESSORS)
                    offers.append((features, splits, None if passes == 1 else blocks, idle))
            yield from sorted(offers, key=lambda offer: offer[-1])[:1]


def _groups(features: int, *, gated: bool) -> tuple[int, ...]:
    """Warpgroups that are tried."""
    if gated:
        return (-(-features // 64),)
    if features <= 64:
        return (1,)
    return (1, 2) if features <= 128 else (2,)


def _cut(
    row_tile: int,
    features: int,
    splits: int,
    windows: int,
    groups: int,
    blocks: int | None,
    *,
    gated: bool,
) -> WideCut | None:
    """With as many stages as there is room for."""
    for stages in range(MOST_STAGES, LEAST_STAGES - 1, -1):
        cut = WideCut(features, splits, windows, stages, groups, gated, blocks)
        if cut.shared_bytes(row_tile) + ALIGNMENT <= MOST_SHARED_BYTES:
            return cut
    return None
