"""The product on the tensor cores computes what numpy computes, thread by thread on a host."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest

from blink_persistent.engines.cuda.kernels.cuts.choices import ROW_TILES
from blink_persistent.engines.cuda.kernels.cuts.wide_cut import (
    WideCut,
    WideKernel,
    WideProductCall,
    wide_code,
)
from blink_persistent.gpu import compile as device_code
from blink_persistent.gpu.structs import layout_assertions
from blink_persistent.testing.primed_host import Way, bfloat16, float32
from blink_persistent.testing.wide_host import HostWideProducts

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

# Rows, output features, inner elements; several passes, tiles that are not full.
CASES = {
    "one row": (WideCut(features=48, splits=2, stages=3, groups=1), 1, 96, 1024),
    "the smallest": (WideCut(features=8, windows=1, stages=2, groups=1), 3, 8, 64),
    "more stages than steps": (WideCut(features=32, stages=5, groups=1), 16, 64, 256),
    "a part of a tile": (WideCut(features=96, windows=1, stages=3), 11, 200, 448),
    "passes": (WideCut(features=64, stages=2, groups=1, blocks=2), 13, 300, 384),
    "parts of a group": (WideCut(features=128, windows=1, stages=3, groups=1), 29, 136, 320),
    "boxes": (WideCut(features=272, windows=1, stages=2, groups=4, blocks=1), 9, 400, 128),
    "two stages at first": (WideCut(features=200, windows=1, stages=5), 16, 400, 704),
    "one stage at first": (WideCut(features=184, stages=3), 40, 184, 1024),
    "all rows": (WideCut(features=128, splits=2, stages=2), 64, 256, 512),
}
GATED = {
    "one row": (WideCut(features=24, stages=3, groups=1, gated=True), 1, 72, 384),
    "passes": (WideCut(features=56, stages=2, groups=1, gated=True, blocks=2), 16, 168, 256),
    "a part of a group": (WideCut(features=112, windows=1, stages=3, gated=True), 20, 112, 320),
    "one stage at first": (
        WideCut(features=96, stages=3, gated=True, blocks=1),
        *(64, 192, 512),
    ),
}
WAYS = [Way(late, seed) for late in (False, True) for seed in (1, 2)]


def row_tile(rows: int) -> int:
    return next(tile for tile in ROW_TILES if rows <= tile)


def shared_bytes(cut: WideCut, rows: int) -> tuple[WideKernel, int]:
    return WideKernel.of(cut, row_tile(rows)), cut.shared_bytes(row_tile(rows))


SHARED_BYTES = [shared_bytes(cut, rows) for cut, rows, *_ in (*CASES.values(), *GATED.values())]


@pytest.fixture(scope="module")
def products() -> HostWideProducts:
    return HostWideProducts(kernel for kernel, _ in SHARED_BYTES)


@needs_compiler
@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_each_split_is_that_part_of_the_product(
    products: HostWideProducts, case: str, way: Way
) -> None:
    cut, rows, size, depth = CASES[case]
    assert cut.fits(size, depth)
    rng = np.random.default_rng(rows)
    x = bfloat16(rng.standard_normal((rows, depth)))
    weight = bfloat16(rng.standard_normal((size, depth)) / depth**0.5)
    out = np.full((cut.splits * rows + 1, size), np.nan, np.float32)
    addresses = x.ctypes.data, weight.ctypes.data, out.ctypes.data
    products.run(cut, row_tile(rows), (rows, size, depth), addresses, way)
    inputs, weights = (float32(a).reshape(len(a), cut.splits, -1) for a in (x, weight))
    expected = np.einsum("rsk,nsk->srn", inputs, weights)
    np.testing.assert_allclose(out[:-1].reshape(expected.shape), expected, atol=2e-5)
    assert np.isnan(out[-1]).all()


@needs_compiler
@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("case", GATED)
def test_gate_and_up_are_joined(products: HostWideProducts, case: str, way: Way) -> None:
    cut, rows, size, depth = GATED[case]
    assert cut.fits(size, depth)
    rng = np.random.default_rng(rows)
    x = bfloat16(2 * rng.standard_normal((rows, depth)))
    weight = bfloat16(rng.standard_normal((2 * size, depth)) / depth**0.5)
    out = np.full((rows, size), 0x7FC0, np.uint16)
    addresses = x.ctypes.data, weight.ctypes.data, out.ctypes.data
    products.run(cut, row_tile(rows), (rows, size, depth), addresses, way)
    gate, up = np.split(float32(x) @ float32(weight).T, 2, axis=1)
    np.testing.assert_allclose(float32(out), gate / (1 + np.exp(-gate)) * up, rtol=2**-8, atol=1e-5)


@needs_compiler
def test_a_kernel_has_the_shared_memory_that_it_is_launched_with(
    products: HostWideProducts,
) -> None:
    for kernel, expected in SHARED_BYTES:
        assert products.shared_bytes(kernel) == expected


def test_a_cut_that_would_leave_something_out_does_not_fit() -> None:
    cut = WideCut(features=112, splits=4, gated=True)
    assert cut.fits(14336, 4096)
    assert not cut.fits(14336, 4096 + 256)
    assert not cut.fits(14336 + 8, 4096)
    assert not replace(cut, groups=1).fits(14336, 4096)
    assert not WideCut(features=60).fits(7680, 4096)
    assert not WideCut(features=264).fits(7680, 4096)
    assert WideCut(features=272).fits(7680, 4096)


def test_the_kernels_compile_where_there_is_a_device_compiler(device_compiler: None) -> None:
    cuts = [
        (WideCut(features=112, stages=3, gated=True), 64),
        (WideCut(features=48, stages=7, groups=1), 64),
        (WideCut(features=248, windows=1, stages=5), 16),
        (WideCut(features=96, stages=5), 32),
        (WideCut(features=128), 8),
    ]
    kernels = [WideKernel.of(cut, tile) for cut, tile in cuts]
    code = device_code.compile_program(
        "wide_product_gpu.cu",
        arch="sm_90a",
        prologue=wide_code(kernels),
        epilogue=layout_assertions((WideProductCall,)),
    )
    for kernel in kernels:
        assert kernel.name.encode() in code
