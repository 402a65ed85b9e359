"""What is likely the fastest in steps of models that were not measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from blink_persistent.engines.cuda.kernels.attention_call import attends_ahead
from blink_persistent.engines.cuda.kernels.choices import (
    ROW_TILES,
    AheadCut,
    AnyAttention,
    AnyCut,
    Cut,
    Shape,
    StepChoices,
)
from blink_persistent.engines.cuda.kernels.even_attention_cut import EvenCut
from blink_persistent.engines.cuda.kernels.hopper import blocks_of
from blink_persistent.engines.cuda.kernels.likely_cuts import (
    LIKELY_TILES,
    StepProduct,
    likely_cut,
    step_products,
)
from blink_persistent.engines.cuda.kernels.likely_wide import LEAST_WIDE, likely_wide_cut
from blink_server.importers.checkpoint import Architecture

APART = ("router", "head")  # a step reads ahead in the others; these are streamed
STREAMED = {
    8: Cut(features=64, step=128, stages=3, warps=4),
    16: Cut(features=64, step=128, stages=3, warps=4),
    32: Cut(features=128, step=128, stages=4, warps=8),
    64: Cut(features=128, step=128, stages=4, warps=8),
}
"""By `ROW_TILES`: the vocabulary's of Llama-3-8B, near the best of every other model."""

EVENS = {
    4: EvenCut(warps=8, pairs=4, resident=1),
    **dict.fromkeys(ROW_TILES, EvenCut(warps=4, pairs=2, resident=2)),
}
"""By the most rows: the best of most models and rows that were measured."""

MOST_PADDING = 1.2  # of the features that Triton's norm computes, a power of two, over a row's


def likely_choices(
    architecture: Architecture, known: StepChoices, capability: tuple[int, int], processors: int
) -> StepChoices:
    """`known`, and what is likely for numbers of rows of which it does not have all of a layer.

    On a GPU of that compute capability, 9 to 11, with so many multiprocessors for them: primed
    products for few rows; from 9 rows on wide ones, and attention in even shares, which both are
    for 9.0 alone; the primed norm where Triton's computes much for nothing.
    """
    found, hopper = known, capability == (9, 0)
    for tile in ROW_TILES:
        cuts = _likely_layer(architecture, tile, hopper=hopper)
        measured = all((shape, tile) in known.cuts for shape in cuts)
        fit = all(blocks_of(cut, shape) <= processors for shape, cut in cuts.items())
        if cuts and fit and not measured:
            found = _with(found, architecture, tile, cuts, hopper=hopper)
    return found


def _likely_layer(architecture: Architecture, tile: int, *, hopper: bool) -> dict[Shape, AheadCut]:
    """Of all products of a layer that can read ahead; none where one of them cannot."""
    found: dict[Shape, AheadCut] = {}
    for product in step_products(architecture):
        if product.name in APART:
            continue
        cut = _likely(product, tile, hopper=hopper)
        if cut is None:
            return {}
        found.setdefault(product.shape, cut)
    return found


def _likely(product: StepProduct, tile: int, *, hopper: bool) -> AheadCut | None:
    options = {"gated": product.gated, "in_parts": product.in_parts}
    if hopper and tile >= LEAST_WIDE:
        return likely_wide_cut(product.shape, tile, **options)
    return likely_cut(product.shape, tile, **options) if tile in LIKELY_TILES else None


def _with(
    choices: StepChoices,
    architecture: Architecture,
    tile: int,
    cuts: dict[Shape, AheadCut],
    *,
    hopper: bool,
) -> StepChoices:
    """And what goes with these products in steps of so many rows."""
    streamed: dict[tuple[Shape, int], AnyCut] = {
        (product.shape, tile): STREAMED[tile]
        for product in step_products(architecture)
        if product.name in APART and STREAMED[tile].fits(*product.shape)
    }
    size = architecture.hidden_size
    padded = (1 << (size - 1).bit_length()) > MOST_PADDING * size
    return replace(
        choices,
        cuts={**streamed, **choices.cuts, **{(shape, tile): cut for shape, cut in cuts.items()}},
        attentions={**(dict(_evens(architecture, tile)) if hopper else {}), **choices.attentions},
        norms=choices.norms | ({tile} if padded and tile > ROW_TILES[0] else set()),
    )


def _evens(architecture: Architecture, tile: int) -> Iterable[tuple[int, AnyAttention]]:
    """Of numbers of rows that have this tile, where the heads are such that they fit."""
    group = architecture.heads // architecture.kv_heads
    for rows, cut in EVENS.items():
        of_tile = tile == min(each for each in ROW_TILES if rows <= each)
        if of_tile and attends_ahead(architecture) and cut.fits(architecture.head_dim, group):
            yield rows, cut
