"""What is reckoned of primed products against what an H200 measured of Llama-3-8B's."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest

from blink_persistent.engines.cuda.architectures import ARCHITECTURES
from blink_persistent.engines.cuda.kernels.cuts.choices import row_tile
from blink_persistent.engines.cuda.kernels.cuts.likely_cuts import (
    LIKELY_TILES,
    StepProduct,
    kernel_us,
    likely_cut,
    primed_candidates,
    step_products,
)
from blink_persistent.engines.cuda.kernels.cuts.primed_cut import PrimedCut

RESULTS = Path(__file__).parents[3] / "bench/results/gpu-2026-11-30/engine"
PRODUCTS = {product.name: product for product in step_products(ARCHITECTURES["llama-3-8b"])}


@dataclass(frozen=True)
class Measured:
    """Microseconds of one product of so many rows, one after the other."""

    product: StepProduct
    tile: int
    cut: PrimedCut | None
    us: float

    @property
    def reckoned(self) -> float:
        assert self.cut is not None
        return kernel_us(self.cut, self.product.shape, self.tile)


def contests(way: str) -> dict[tuple[int, str], list[Measured]]:
    """What was measured, by number of `ROW_TILES` and product."""
    found = defaultdict(list)
    for line in json.loads((RESULTS / "primed-products-llama-3-8b.json").read_text()):
        if line["kind"] == "product" and line["way"] == way:
            tile, cut = row_tile(line["rows"]), None
            assert tile is not None
            if way == "primed":
                cut = PrimedCut(**line["cut"])
            product = PRODUCTS[line["name"]]
            found[tile, product.name].append(Measured(product, tile, cut, line["us"]))
    return dict(found)


PRIMED = contests("primed")


def test_every_product_was_measured_for_few_and_many_rows() -> None:
    assert set(PRIMED) == {(tile, name) for tile in (8, 16, 64) for name in PRODUCTS}


@pytest.mark.parametrize(("tile", "most"), [(8, 0.06), (16, 0.08), (64, 0.22)])
def test_what_is_reckoned_was_measured(tile: int, most: float) -> None:
    found = [one for (of, _), all_of in PRIMED.items() if of == tile for one in all_of]
    errors = [math.log(one.reckoned / one.us) for one in found]
    assert max(map(abs, errors)) < most
    assert math.sqrt(sum(error**2 for error in errors) / len(errors)) < most / 2


@pytest.mark.parametrize("contest", PRIMED, ids=str)
def test_the_least_that_is_reckoned_is_about_the_fastest(contest: tuple[int, str]) -> None:
    found = PRIMED[contest]
    first = min(found, key=lambda one: one.reckoned)
    assert first.us <= 1.03 * min(one.us for one in found)


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("tile", LIKELY_TILES)
def test_the_likely_cut_was_about_the_fastest(tile: int, name: str) -> None:
    """In a step splits cost more than alone, as the next kernel adds them."""
    product = PRODUCTS[name]
    cut = likely_cut(product.shape, tile, gated=product.gated, in_parts=product.in_parts)
    found = {one.cut: one.us for one in PRIMED[tile, name]}
    assert found[cut] <= 1.04 * min(found.values())


def test_primed_products_of_many_rows_are_not_likely() -> None:
    """Even the best that was measured is slower than the streamed one."""
    streamed = contests("streamed")
    for name in PRODUCTS:
        assert min(one.us for one in PRIMED[64, name]) > 1.2 * streamed[64, name][0].us
    assert 64 not in LIKELY_TILES


@pytest.mark.parametrize("name", PRODUCTS)
def test_longer_runs_are_reckoned_faster(name: str) -> None:
    product = PRODUCTS[name]
    shape, options = product.shape, {"gated": product.gated, "in_parts": product.in_parts}
    for tile in LIKELY_TILES:
        least = {2: math.inf, 4: math.inf}
        for cut in primed_candidates(shape, tile, **options):
            least[cut.windows] = min(least[cut.windows], kernel_us(cut, shape, tile))
        assert least[4] < least[2] < math.inf
