"""Ways to cut kernels that read ahead, which engine_choices.py and primed_products.py try."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from blink_persistent.engines.cuda.kernels.ahead.products import AheadProducts
from blink_persistent.engines.cuda.kernels.cuts.attention_call import attends_ahead
from blink_persistent.engines.cuda.kernels.cuts.choices import AheadCut, AnyAttention, Shape
from blink_persistent.engines.cuda.kernels.cuts.direct_attention_cut import DirectCut
from blink_persistent.engines.cuda.kernels.cuts.even_attention_cut import EvenCut
from blink_persistent.engines.cuda.kernels.cuts.likely_wide import (
    MOST_SHARED_BYTES,
    idle_share,
    wide_candidates,
)
from blink_persistent.engines.cuda.kernels.cuts.wide_cut import ALIGNMENT, WideCut
from blink_persistent.gpu.driver import Gpu
from blink_server.importers.checkpoint import Architecture

ALL_STAGES = (3, 4, 5, 6, 7, 8, 10, 12, 14)
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


def wide_offers(shape: Shape, row_tile: int, *, gated: bool, in_parts: bool) -> list[WideCut]:
    """Of all ways to cut a wide product, those that leave the fewest multiprocessors idle."""
    size = shape[0] // (2 if gated else 1)
    found = wide_candidates(shape, row_tile, gated=gated, in_parts=in_parts)
    return sorted(set(found), key=lambda cut: (idle_share(cut, size), cut.windows, repr(cut)))[
        :TRIED
    ]


def with_other_stages(cut: AheadCut, row_tile: int) -> list[AheadCut]:
    """The same but for its stages, with each number that a block has room for.

    More keep more weights under way, fewer may leave room for a block of the next kernel.
    """
    offers = [replace(cut, stages=stages) for stages in ALL_STAGES if stages != cut.stages]
    return [
        offer for offer in offers if offer.shared_bytes(row_tile) + ALIGNMENT <= MOST_SHARED_BYTES
    ]
