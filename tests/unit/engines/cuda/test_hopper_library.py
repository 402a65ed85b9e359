"""How many rows the library multiplies."""

from __future__ import annotations

import pytest

from blink_persistent.engines.cuda.architectures import ARCHITECTURES
from blink_persistent.engines.cuda.kernels.cuts.choices import ROW_TILES
from blink_persistent.engines.cuda.kernels.cuts.hopper_library import (
    HOPPER_ROWS,
    faster_rows,
    measured_rows,
)
from blink_persistent.engines.cuda.kernels.cuts.likely_cuts import APART, step_products

MODELS = ("llama-3-8b", "phi-4", "qwen3-32b", "qwen3-30b-a3b")


def test_rows_that_take_much_longer_have_the_fewest_that_are_as_good_as_the_best() -> None:
    us = {72: 50.0, 80: 46.0, 88: 90.0, 96: 60.5, 104: 60.0, 112: 64.0, 120: 61.0, 128: 70.0}
    assert faster_rows(us) == {88: 96}


def test_rows_are_padded_only_where_it_is_worth_it() -> None:
    assert faster_rows({72: 100.0, 80: 91.0}) == {}
    assert faster_rows({72: 100.0, 80: 90.0}) == {72: 80}
    assert faster_rows({80: 90.0, 72: 100.0, 88: 80.0}) == {72: 88, 80: 88}
    assert faster_rows({}) == {}


@pytest.mark.parametrize("model", MODELS)
def test_every_product_of_the_layers_was_measured(model: str) -> None:
    layer = {p.shape for p in step_products(ARCHITECTURES[model]) if p.name not in APART}
    assert layer <= HOPPER_ROWS.keys()
    assert measured_rows((9, 0)) is HOPPER_ROWS


def test_rows_get_more_and_are_beyond_those_that_are_streamed() -> None:
    for table in HOPPER_ROWS.values():
        for rows, more in table.items():
            assert ROW_TILES[-1] < rows < more
            assert rows % 8 == more % 8 == 0
            assert more not in table, "what is padded to was slow too"


@pytest.mark.parametrize("capability", [(0, 0), (8, 0), (10, 0)])
def test_other_gpus_multiply_the_rows_that_there_are(capability: tuple[int, int]) -> None:
    assert measured_rows(capability) == {}
