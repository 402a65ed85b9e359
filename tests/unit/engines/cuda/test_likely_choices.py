"""Which kernels a model's steps have where nothing was measured."""

from __future__ import annotations

import math
import re
from ast import literal_eval
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from blink_persistent.engines.cuda.architectures import ARCHITECTURES
from blink_persistent.engines.cuda.kernels.cuts.choices import ROW_TILES, Cut, StepChoices, row_tile
from blink_persistent.engines.cuda.kernels.cuts.direct_attention_cut import DirectCut
from blink_persistent.engines.cuda.kernels.cuts.even_attention_cut import EvenCut
from blink_persistent.engines.cuda.kernels.cuts.hopper import (
    HOPPER_AHEAD,
    blocks_of,
    measured_choices,
)
from blink_persistent.engines.cuda.kernels.cuts.likely_choices import likely_choices
from blink_persistent.engines.cuda.kernels.cuts.likely_cuts import (
    APART,
    LIKELY_TILES,
    step_products,
)
from blink_persistent.engines.cuda.kernels.cuts.likely_wide import (
    MOST_SHARED_BYTES,
    likely_wide_cut,
    wide_candidates,
)
from blink_persistent.engines.cuda.kernels.cuts.primed_cut import PrimedCut
from blink_persistent.engines.cuda.kernels.cuts.wide_cut import ALIGNMENT, WideCut
from blink_server.importers.checkpoint import Architecture

HOPPER, PROCESSORS = (9, 0), 131
RESULTS = Path(__file__).parents[3] / "bench/results/gpu-2026-11-30/engine"
LINE = re.compile(r"(\S+) product (\d+) (qkv|output|gate_up|down) ([\d.]+) (\{.*'groups'.*\})")
QWEN, MIXTURE = ARCHITECTURES["qwen3-8b"], ARCHITECTURES["qwen3-30b-a3b"]


def likely(architecture: Architecture, capability: tuple[int, int] = HOPPER) -> StepChoices:
    known = measured_choices(architecture, capability, PROCESSORS)
    return likely_choices(architecture, known, capability, PROCESSORS)


@dataclass(frozen=True)
class Contest:
    """Wide cuts of a model's product at a number of rows, and what each took, us."""

    model: str
    rows: int
    name: str


def contests() -> dict[Contest, dict[WideCut, float]]:
    found: dict[Contest, dict[WideCut, float]] = defaultdict(dict)
    for path in sorted(RESULTS.glob("choices-third-*.log")):
        for model, rows, name, us, cut in LINE.findall(path.read_text()):
            found[Contest(model, int(rows), name)][WideCut(**literal_eval(cut))] = float(us)
    return dict(found)


CONTESTS = contests()


def test_the_likely_wide_cut_was_about_the_fastest() -> None:
    assert len(CONTESTS) == 20
    over = []
    for contest, measured in CONTESTS.items():
        products = {p.name: p for p in step_products(ARCHITECTURES[contest.model])}
        product, tile = products[contest.name], row_tile(contest.rows)
        assert tile is not None
        options = {"gated": product.gated, "in_parts": product.in_parts}
        cut = likely_wide_cut(product.shape, tile, **options)
        assert cut is not None
        over.append(measured[cut] / min(measured.values()))
    assert max(over) < 1.03
    assert math.prod(over) ** (1 / len(over)) < 1.005


@pytest.mark.parametrize("tile", ROW_TILES[1:])
@pytest.mark.parametrize("model", ["qwen3-8b", "qwen2.5-7b", "qwen3-0.6b", "phi-4"])
def test_candidates_fit(model: str, tile: int) -> None:
    for product in step_products(ARCHITECTURES[model]):
        options = {"gated": product.gated, "in_parts": product.in_parts}
        found = list(wide_candidates(product.shape, tile, **options))
        assert found
        for cut in found:
            size, depth = product.shape[0] // (2 if product.gated else 1), product.shape[1]
            assert cut.fits(size, depth)
            assert cut.gated == product.gated
            assert cut.splits == 1 or product.in_parts
            assert cut.shared_bytes(tile) + ALIGNMENT <= MOST_SHARED_BYTES
            assert blocks_of(cut, product.shape) <= PROCESSORS


def test_few_rows_have_primed_products_and_more_have_wide_ones() -> None:
    found = likely(QWEN)
    for product in step_products(QWEN):
        for tile in ROW_TILES:
            cut = found.cuts[product.shape, tile]
            if product.name not in APART:
                assert isinstance(cut, PrimedCut if tile == ROW_TILES[0] else WideCut)
    assert set(found.attentions) == {1, 4, *ROW_TILES}
    for rows, attention in found.attentions.items():
        assert isinstance(attention, DirectCut if rows == 1 else EvenCut)
    assert not found.norms


def test_weights_that_were_measured_in_another_model_are_cut_so() -> None:
    found = likely(QWEN)
    same = {key for key in HOPPER_AHEAD if key[0] in {p.shape for p in step_products(QWEN)}}
    assert len(same) == 2 * len(ROW_TILES), "queries and output are Llama-3-8B's"
    assert all(found.cuts[key] == HOPPER_AHEAD[key] for key in same)


@pytest.mark.parametrize("experts", [64, 256])
def test_a_router_is_streamed_so_that_the_step_is_chained(experts: int) -> None:
    other = replace(MIXTURE, hidden_size=2560, experts=experts)
    found = likely(other)
    for tile in ROW_TILES:
        of = {p.name: found.cuts[p.shape, tile] for p in step_products(other)}
        assert isinstance(of["router"], Cut)
        assert of["router"].fits(experts, 2560)
        assert not isinstance(of["qkv"], Cut)


@pytest.mark.parametrize("experts", [8, 60])
def test_where_it_cannot_be_nothing_reads_ahead(experts: int) -> None:
    other = replace(MIXTURE, hidden_size=2560, experts=experts)
    assert likely(other) == measured_choices(other, HOPPER, PROCESSORS)


def test_gate_and_up_of_the_shape_of_queries_keep_a_layer_as_it_was() -> None:
    """One cut cannot be for both."""
    queries = (QWEN.heads + 2 * QWEN.kv_heads) * QWEN.head_dim
    other = replace(QWEN, intermediate_size=queries // 2)
    assert likely(other) == measured_choices(other, HOPPER, PROCESSORS)


def test_an_odd_hidden_size_has_the_primed_norm() -> None:
    odd = replace(QWEN, hidden_size=5120 - 256)
    assert likely(odd).norms == set(ROW_TILES[1:])


@pytest.mark.parametrize(
    "heads",
    [{"head_dim": 256, "heads": 16, "kv_heads": 4}, {"head_dim": 80}, {"kv_heads": 2}],
    ids=["large", "odd", "large groups"],
)
def test_other_heads_have_tritons_attention(heads: dict[str, int]) -> None:
    other = replace(QWEN, **heads)
    found = likely(other)
    assert not found.attentions
    assert all((p.shape, 16) in found.cuts for p in step_products(other))


@pytest.mark.parametrize("model", ["llama-3-8b", "qwen3-32b", "qwen3-30b-a3b", "phi-4"])
def test_what_was_measured_stays(model: str) -> None:
    architecture = ARCHITECTURES[model]
    assert likely(architecture) == measured_choices(architecture, HOPPER, PROCESSORS)


def test_a_layer_of_which_one_product_cannot_be_cut_has_none() -> None:
    narrow = replace(QWEN, intermediate_size=12288 + 8)  # no multiple of a window
    found = likely(narrow)
    assert found == measured_choices(narrow, HOPPER, PROCESSORS)


def test_gpus_of_another_kind_have_primed_products_alone() -> None:
    found = likely(QWEN, (10, 0))
    layer = [p for p in step_products(QWEN) if p.name not in APART]
    for tile in ROW_TILES:
        cuts = [found.cuts.get((p.shape, tile)) for p in layer]
        assert all(isinstance(cut, PrimedCut) for cut in cuts) == (tile in LIKELY_TILES)
    assert not found.attentions


def test_blocks_have_a_multiprocessor_each() -> None:
    known = measured_choices(QWEN, HOPPER, 113)
    assert likely_choices(QWEN, known, HOPPER, 113) == known
