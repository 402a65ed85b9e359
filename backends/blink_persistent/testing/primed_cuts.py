"""Primed products for all numbers of rows, for tests of the kernels."""

from __future__ import annotations

from blink_persistent.engines.cuda.kernels.cuts.choices import ROW_TILES, Shape
from blink_persistent.engines.cuda.kernels.cuts.likely_cuts import likely_cut, step_products
from blink_persistent.engines.cuda.kernels.cuts.primed_cut import PrimedCut
from blink_server.importers.checkpoint import Architecture


def likely_cuts(architecture: Architecture) -> dict[tuple[Shape, int], PrimedCut]:
    """Of every product of a model's decode steps that can be cut so.

    Of products with weights of one shape, the first that `step_products` names has the cut.
    """
    found: dict[tuple[Shape, int], PrimedCut] = {}
    for product in step_products(architecture):
        for tile in ROW_TILES:
            cut = likely_cut(product.shape, tile, gated=product.gated, in_parts=product.in_parts)
            if cut is not None:
                found.setdefault((product.shape, tile), cut)
    return found
