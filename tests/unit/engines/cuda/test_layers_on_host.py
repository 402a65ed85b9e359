"""All layers of a decode step in one kernel: what numpy computes, thread by thread on a host."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from blink_persistent.engines.cuda.kernels.cuts.attention_call import AttentionCall
from blink_persistent.engines.cuda.kernels.cuts.hopper import HOPPER_LAYERS
from blink_persistent.engines.cuda.kernels.cuts.layers_cut import PAGE, LayerFeatures, LayersCut
from blink_persistent.testing.layers_host import (
    HostLayers,
    LayersCase,
    LayersProblem,
    block_tables,
)
from blink_persistent.testing.primed_host import Way

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

LLAMA = LayerFeatures(qkv=48, output=32, gate_up=112, down=32)
NARROW = LayerFeatures(qkv=64, output=32, gate_up=16, down=32)
NARROW_CUT = LayersCut(stages=3, qkv=3, output=4, gate_up=5, down=2, early=2, flight=3, paged=2)
CUTS = {
    LLAMA: [(rows, HOPPER_LAYERS[rows]) for rows in (8, 16)],
    NARROW: [(rows, NARROW_CUT) for rows in (8, 16)],
}

CASES = {
    "one row": (LayersCase((130,), layers=1), LLAMA, HOPPER_LAYERS[8]),
    "borders of pages": (LayersCase((1, 63, 64, 65, 700, 1025, 0, 2)), LLAMA, HOPPER_LAYERS[8]),
    "up to 16 rows": (
        LayersCase((1, 63, 64, 65, 300, 700, 0, 2, 1, 1, 1, 129, 400, 33, 1, 64), layers=1),
        *(LLAMA, HOPPER_LAYERS[16]),
    ),
    "all stages on their way": (
        LayersCase((300, 1)),
        *(NARROW, replace(NARROW_CUT, early=3, flight=3, paged=3)),
    ),
    "one stage on its way, large blocks of the KV": (
        LayersCase((1025, 1, 64), block_size=128),
        *(NARROW, replace(NARROW_CUT, early=1, flight=1, paged=1)),
    ),
    "an odd number of layers, norms of heads": (
        LayersCase((66, 5), layers=3, normed=True),
        *(NARROW, NARROW_CUT),
    ),
    "no row is active": (LayersCase((0, 0)), NARROW, NARROW_CUT),
    "a row that many blocks share": (LayersCase((1500,)), NARROW, NARROW_CUT),
    "two kv heads, norms of heads": (
        LayersCase((0, 300, 129), layers=1, kv_heads=2, normed=True),
        *(NARROW, NARROW_CUT),
    ),
    "more pieces than are projected at a time": (
        LayersCase((*(1,) * 14, 5500, 30), layers=1),
        *(NARROW, NARROW_CUT),
    ),
    "blocks that share two groups, the largest blocks of the KV": (
        LayersCase((200,) * 10, block_size=256),
        *(NARROW, NARROW_CUT),
    ),
}


@pytest.fixture(scope="module")
def kernels() -> dict[LayerFeatures, HostLayers]:
    return {features: HostLayers(cuts, features) for features, cuts in CUTS.items()}


def most_rows(case: LayersCase) -> int:
    """Of the kernel for a case."""
    return -(-len(case.lengths) // 8) * 8


@pytest.mark.parametrize("name", CASES)
def test_a_step_goes_through_all_layers(
    kernels: dict[LayerFeatures, HostLayers], name: str
) -> None:
    case, features, cut = CASES[name]
    rows = most_rows(case)
    problem = LayersProblem(case, rows, features)
    run = partial(kernels[features].run, rows, cut, problem)
    seed = 2 * list(CASES).index(name)  # another order each, so that each warp is slow once
    problem.check([partial(run, Way(late, seed + late)) for late in (False, True)])


def test_launches_in_any_order_of_their_threads_leave_the_same(
    kernels: dict[LayerFeatures, HostLayers],
) -> None:
    case = LayersCase((300,) * 7)  # blocks share two groups
    problem = LayersProblem(case, 8, NARROW)
    run = partial(kernels[NARROW].run, 8, NARROW_CUT, problem)
    problem.check([partial(run, Way(late, seed)) for seed in (2, 3) for late in (False, True)])


@pytest.mark.parametrize("part", [0, 1], ids=["keys", "values"])
@pytest.mark.parametrize("length", [40, 500], ids=["one block", "shared"])
def test_an_entry_that_is_no_number_is_its_own_rows_alone(
    kernels: dict[LayerFeatures, HostLayers], part: int, length: int
) -> None:
    case = LayersCase((70, length, 65), layers=1)
    problem = LayersProblem(case, 8, NARROW)
    run = partial(kernels[NARROW].run, 8, NARROW_CUT, problem, Way())
    others = problem.launch(run)
    problem.spoil(part, 1, 20)
    found = problem.launch(run)
    assert np.isnan(found[1]).all(), "the answer would look like one"
    np.testing.assert_array_equal(found[[0, 2]], others[[0, 2]])


@pytest.mark.parametrize("kv_heads", [1, 2, 8])
@pytest.mark.parametrize("kind", ["one row", "rows alike", "uneven", "short", "inactive"])
def test_blocks_copy_each_page_once_in_even_shares(
    kernels: dict[LayerFeatures, HostLayers], kind: str, kv_heads: int
) -> None:
    """Of more pages, too, than a block keeps in mind."""
    chosen = random.Random(kv_heads)
    case = LayersCase(
        {
            "one row": (200_000,),
            "rows alike": (20_000,) * 16,
            "uneven": tuple(chosen.choice([0, 1, 64, 65, 500, 40_000]) for _ in range(15)),
            "short": tuple(chosen.choice([1, 2, 64, 65]) for _ in range(13)),
            "inactive": (0,) * 5,
        }[kind],
        kv_heads=kv_heads,
        block_size=128,
    )
    blocks = 16
    tables, _ = block_tables(case, np.random.default_rng(1))
    lengths = np.array(case.lengths, np.int32)
    call = AttentionCall(
        lengths=lengths.ctypes.data,
        tables=tables.ctypes.data,
        rows=len(lengths),
        kv_heads=kv_heads,
        max_blocks=tables.shape[1],
        block_size=case.block_size,
    )
    expected = Counter(
        (int(table[entry // case.block_size]) * kv_heads + head) * case.block_size
        + entry % case.block_size
        for table, length in zip(tables, case.lengths, strict=True)
        for head in range(kv_heads)
        for entry in range(0, length - 1, PAGE)
    )
    most = expected.total() // blocks + 100
    found = kernels[LLAMA].copied_pages(call, blocks, most)
    assert Counter(page for pages in found for page in pages) == expected
    work = expected.total() + 3 * len(lengths) * kv_heads  # a group's begin, and a page at least
    assert max(map(len, found)) <= work // blocks + 1


def test_a_kernel_has_the_shared_memory_that_it_is_launched_with(
    kernels: dict[LayerFeatures, HostLayers],
) -> None:
    for features, cuts in CUTS.items():
        for rows, cut in cuts:
            assert cut.fits(rows, features)
            assert kernels[features].shared_bytes(rows, cut) == cut.shared_bytes(rows, features)
