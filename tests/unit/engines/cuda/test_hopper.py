"""Which kernels a model's steps have by what was measured, and by what is likely."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from blink_persistent.engines.cuda.architectures import ARCHITECTURES
from blink_persistent.engines.cuda.kernels.cuts.choices import (
    ROW_TILES,
    AheadCut,
    Cut,
    StepChoices,
    row_tile,
)
from blink_persistent.engines.cuda.kernels.cuts.direct_attention_cut import DirectCut
from blink_persistent.engines.cuda.kernels.cuts.even_attention_cut import EvenCut
from blink_persistent.engines.cuda.kernels.cuts.hopper import (
    HOPPER_AHEAD,
    HOPPER_ATTENTIONS,
    HOPPER_CUTS,
    HOPPER_TILINGS,
    measured,
    measured_choices,
)
from blink_persistent.engines.cuda.kernels.cuts.likely_cuts import SHARED_BYTES, step_products
from blink_persistent.engines.cuda.kernels.cuts.likely_wide import MOST_SHARED_BYTES
from blink_persistent.engines.cuda.kernels.cuts.primed_cut import PrimedCut
from blink_persistent.engines.cuda.kernels.cuts.wide_cut import ALIGNMENT, WideCut

HOPPER = (9, 0)
LLAMA = ARCHITECTURES["llama-3-8b"]
MEASURED = ("llama-3-8b", "qwen3-32b", "qwen3-30b-a3b", "phi-4")
EVEN = {16, 32, 64}  # rows that have even shares where nothing is chained, too


def kinds(choices: StepChoices, shape: Any, rows: int) -> dict[str, type]:
    """How each of a model's products is computed in a step of so many rows."""
    cuts = choices.cuts
    products = step_products(shape)
    return {p.name: type(cuts.get((p.shape, row_tile(rows) or 0))) for p in products}


@pytest.mark.parametrize("tables", [HOPPER_CUTS, HOPPER_AHEAD])
def test_what_was_measured_fits_its_shape(tables: Any) -> None:
    gated = {p.shape for model in MEASURED for p in step_products(ARCHITECTURES[model]) if p.gated}
    assert tables
    for (shape, tile), cut in tables.items():
        size, depth = shape
        assert cut.fits(size // 2 if shape in gated else size, depth)
        assert cut.splits == 1 or shape not in gated
        assert tile in ROW_TILES
        if isinstance(cut, AheadCut):
            assert cut.gated == (shape in gated)
        if isinstance(cut, PrimedCut):
            assert cut.shared_bytes(tile) <= SHARED_BYTES
        if isinstance(cut, WideCut):
            assert cut.shared_bytes(tile) + ALIGNMENT <= MOST_SHARED_BYTES


def test_attention_in_even_shares_fits_its_heads() -> None:
    for ((heads, kv_heads, size), rows), cut in HOPPER_ATTENTIONS.items():
        assert rows in (1, 4, *ROW_TILES)
        assert not isinstance(cut, EvenCut) or cut.fits(size, heads // kv_heads)


def test_32_rows_have_products_of_the_engines_own_and_a_tiling() -> None:
    for model in MEASURED:
        shape = ARCHITECTURES[model]
        found = measured_choices(shape, HOPPER)
        assert set(kinds(found, shape, 32).values()) <= {Cut, WideCut}
        assert ((shape.heads, shape.kv_heads, shape.head_dim), 32) in HOPPER_TILINGS


def test_llama_has_of_each_kind_where_a_step_was_fastest_with_it() -> None:
    found = measured_choices(LLAMA, HOPPER)
    for rows, kind in ((1, PrimedCut), (8, PrimedCut), (9, WideCut), (17, WideCut), (64, WideCut)):
        of = kinds(found, LLAMA, rows)
        assert of.pop("head") is (WideCut if rows == 9 else Cut)
        assert set(of.values()) == {kind}
    assert found.attentions == {
        1: DirectCut(warps=8, resident=1, clustered=True, most=8),
        4: EvenCut(warps=8, pairs=4, resident=1),
        **dict.fromkeys((8, 16, 32, 64), EvenCut(warps=4, pairs=2, resident=2)),
    }
    assert not found.norms


def test_a_model_has_what_was_measured_only_for_the_rows_that_were() -> None:
    """Qwen3-32B from 9 rows on: wide products, even shares, a norm for its odd hidden size."""
    qwen = ARCHITECTURES["qwen3-32b"]
    found = measured_choices(qwen, HOPPER)
    for rows, kind in ((8, Cut), (9, WideCut), (17, WideCut), (64, WideCut)):
        of = kinds(found, qwen, rows)
        assert {of[name] for name in ("qkv", "output", "gate_up")} == {kind}
    assert found.attentions == {
        16: EvenCut(warps=8, pairs=4, resident=1),
        **dict.fromkeys((32, 64), EvenCut(warps=4, pairs=2, resident=2)),
    }
    assert found.norms == {16, 32, 64}


def test_a_mixture_of_experts_has_kernels_of_its_own_for_one_token() -> None:
    """Its router does not keep the other products from reading ahead."""
    qwen = ARCHITECTURES["qwen3-30b-a3b"]
    found = measured_choices(qwen, HOPPER)
    for rows, kind in ((1, PrimedCut), (8, PrimedCut), (9, WideCut), (64, WideCut)):
        assert kinds(found, qwen, rows) == {
            **{"qkv": kind, "output": kind},
            **{"router": Cut, "head": Cut},
        }
    assert set(found.attentions) == {1, 8, 16, 32, 64}
    assert found.one_token_experts is not None
    smaller = measured_choices(qwen, HOPPER, 113)
    assert set(smaller.attentions) == EVEN
    assert smaller.one_token_experts is None
    assert measured_choices(replace(qwen, experts_per_token=4), HOPPER).one_token_experts is None
    assert measured_choices(LLAMA, HOPPER).one_token_experts is None


def test_where_a_router_is_the_librarys_nothing_reads_ahead() -> None:
    """It would break the chain. Queries, output and heads are Llama's."""
    other = replace(LLAMA, experts=8, experts_per_token=2)
    found = measured_choices(other, HOPPER)
    for rows in (1, 16, 64):
        of = kinds(found, other, rows)
        assert of.pop("router") is type(None)
        assert set(of.values()) == {Cut}
    assert set(found.attentions) == EVEN


def test_a_vocabulary_that_was_not_measured_is_the_librarys_and_the_rest_as_measured() -> None:
    mistral = ARCHITECTURES["mistral-7b-v0.3"]
    found = measured_choices(mistral, HOPPER)
    of = kinds(found, mistral, 1)
    assert of.pop("head") is type(None)
    assert set(of.values()) == {PrimedCut}


def test_a_layer_of_which_not_all_is_measured_has_none_that_read_ahead() -> None:
    """They are worth it in a chain only: unchained, steps were 12 % longer than chained."""
    qwen = ARCHITECTURES["qwen3-8b"]
    found, missing = measured_choices(qwen, HOPPER), type(None)
    assert kinds(found, qwen, 1) == {
        **{"qkv": Cut, "output": Cut},
        **{"gate_up": missing, "down": missing, "head": missing},
    }
    assert set(found.attentions) == EVEN


def test_nothing_is_known_of_another_gpu() -> None:
    assert measured((8, 0)) == ({}, {})
    assert measured_choices(LLAMA, (8, 0)) == StepChoices()


def test_no_product_that_reads_ahead_has_more_blocks_than_multiprocessors() -> None:
    found = measured_choices(LLAMA, HOPPER, 113)  # an H100 for PCI Express has 114
    for tile in ROW_TILES:
        assert set(kinds(found, LLAMA, tile).values()) == {Cut}
    assert set(found.attentions) == EVEN
    assert measured_choices(LLAMA, HOPPER, 128) == measured_choices(LLAMA, HOPPER)
