"""What is likely the fastest in steps of models that were not measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from blink_persistent.engines.cuda.kernels.cuts.attention_call import attends_ahead
from blink_persistent.engines.cuda.kernels.cuts.choices import (
    ROW_TILES,
    AheadCut,
    AnyAttention,
    AnyCut,
    Cut,
    Shape,
    StepChoices,
    row_tile,
)
from blink_persistent.engines.cuda.kernels.cuts.direct_attention_cut import DirectCut
from blink_persistent.engines.cuda.kernels.cuts.even_attention_cut import EvenCut
from blink_persistent.engines.cuda.kernels.cuts.hopper import HOPPER_AHEAD, blocks_of
from blink_persistent.engines.cuda.kernels.cuts.likely_cuts import (
    APART,
    LIKELY_TILES,
    StepProduct,
    likely_cut,
    step_products,
)
from blink_persistent.engines.cuda.kernels.cuts.likely_wide import LEAST_WIDE, likely_wide_cut
from blink_server.importers.checkpoint import Architecture

STREAMED = {
    8: Cut(features=64, step=128, stages=3, warps=4),
    16: Cut(features=64, step=128, stages=3, warps=4),
    32: Cut(features=128, step=128, stages=4, warps=8),
    64: Cut(features=128, step=128, stages=4, warps=8),
}
"""By `ROW_TILES`: the vocabulary's of Llama-3-8B, near the best of every other model."""

ROUTER = Cut(features=64, step=128, stages=3, warps=4)
"""That of Qwen3-30B-A3B at 32 rows: 128 features would leave it one program."""

ATTENTIONS: Mapping[int, AnyAttention] = {
    1: DirectCut(warps=4, resident=3, clustered=True, most=16),
    4: EvenCut(warps=8, pairs=4, resident=1),
    **dict.fromkeys(ROW_TILES, EvenCut(warps=4, pairs=2, resident=2)),
}
"""By the most rows: the best of most models and rows that were measured; of one row that of
Qwen3-30B-A3B, since Llama-3-8B's needs a product ahead that leaves it more room."""

MOST_PADDING = 1.2  # of the features that Triton's norm computes, a power of two, over a row's


def likely_choices(
    architecture: Architecture, known: StepChoices, capability: tuple[int, int], processors: int
) -> StepChoices:
    """`known`, and what is likely for numbers of rows of which it does not have all of a layer.

    On a GPU of that compute capability, 9 to 11, with so many multiprocessors for them: primed
    products for few rows; from 9 rows on wide ones, and attention that reads ahead, which both are
    for 9.0 alone; the primed norm where Triton's computes much for nothing. Only where all
    products of a layer can be chained.
    """
    found, hopper = known, capability == (9, 0)
    layer = [product for product in step_products(architecture) if product.name != "head"]
    for tile in ROW_TILES:
        if all((product.shape, tile) in known.cuts for product in layer):
            continue
        cuts = _likely_cuts(architecture, tile, known, hopper=hopper)
        chained = all(_computes(cuts.get(product.shape), product) for product in layer)
        if chained and all(_has_room(cut, shape, processors) for shape, cut in cuts.items()):
            found = _with(found, architecture, tile, cuts, hopper=hopper)
    return found


def _likely_cuts(
    architecture: Architecture, tile: int, known: StepChoices, *, hopper: bool
) -> dict[Shape, AnyCut]:
    """Of a step's products that can be cut so."""
    found: dict[Shape, AnyCut] = {}
    for product in step_products(architecture):
        cut: AnyCut | None
        if product.name in APART:
            cut = known.cuts.get((product.shape, tile)) or _streamed(product, tile)
        else:
            cut = _ahead(product, tile, hopper=hopper)
        if cut is not None:
            found.setdefault(product.shape, cut)
    return found


def _streamed(product: StepProduct, tile: int) -> Cut | None:
    cut = ROUTER if product.name == "router" else STREAMED[tile]
    return cut if cut.fits(*product.shape) else None


def _ahead(product: StepProduct, tile: int, *, hopper: bool) -> AheadCut | None:
    """As measured for another model with such a weight, or by rule."""
    measured = HOPPER_AHEAD.get((product.shape, tile)) if hopper else None
    if measured is not None and measured.gated == product.gated:
        return measured
    options = {"gated": product.gated, "in_parts": product.in_parts}
    if hopper and tile >= LEAST_WIDE:
        return likely_wide_cut(product.shape, tile, **options)
    return likely_cut(product.shape, tile, **options) if tile in LIKELY_TILES else None


def _computes(cut: AnyCut | None, product: StepProduct) -> bool:
    """Gate with up, and another weight of the model, may have the same shape, and one cut."""
    return isinstance(cut, Cut) or (cut is not None and cut.gated == product.gated)


def _has_room(cut: AnyCut, shape: Shape, processors: int) -> bool:
    return isinstance(cut, Cut) or blocks_of(cut, shape) <= processors


def _with(
    choices: StepChoices,
    architecture: Architecture,
    tile: int,
    cuts: Mapping[Shape, AnyCut],
    *,
    hopper: bool,
) -> StepChoices:
    """And what goes with these products in steps of so many rows."""
    size = architecture.hidden_size
    wasteful = (1 << (size - 1).bit_length()) > MOST_PADDING * size
    return replace(
        choices,
        cuts={**choices.cuts, **{(shape, tile): cut for shape, cut in cuts.items()}},
        attentions={**(_attentions(architecture, tile) if hopper else {}), **choices.attentions},
        norms=choices.norms | ({tile} if wasteful and tile > ROW_TILES[0] else set()),
    )


def _attentions(architecture: Architecture, tile: int) -> dict[int, AnyAttention]:
    """Of numbers of rows that have this tile, where they fit the heads."""
    if not attends_ahead(architecture):
        return {}
    size, group = architecture.head_dim, architecture.heads // architecture.kv_heads
    return {
        rows: cut
        for rows, cut in ATTENTIONS.items()
        if row_tile(rows) == tile and (isinstance(cut, DirectCut) or cut.fits(size, group))
    }
