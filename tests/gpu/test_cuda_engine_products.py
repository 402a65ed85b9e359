"""Every measured cut of a product computes what the library computes, for every number of rows.

So does a primed cut of each product of published models, alone and chained in a captured graph.
The library's products with more rows than a step has do not change what comes of it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from blink_persistent.engines.cuda.architectures import ARCHITECTURES
from blink_persistent.engines.cuda.kernels.ahead.products import ahead_on
from blink_persistent.engines.cuda.kernels.cuts.choices import ROW_TILES, AheadCut, Shape, row_tile
from blink_persistent.engines.cuda.kernels.cuts.hopper import HOPPER_AHEAD, measured
from blink_persistent.engines.cuda.kernels.cuts.likely_cuts import likely_cut, step_products
from blink_persistent.engines.cuda.kernels.cuts.wide_cut import WideCut
from blink_persistent.engines.cuda.kernels.fused import FusedKernels
from blink_persistent.engines.cuda.kernels.products import Products
from blink_persistent.engines.cuda.weights import random_weights
from blink_persistent.gpu.driver import Gpu
from blink_persistent.testing.paged_decoder import PagedDecoder, Part

pytestmark = pytest.mark.gpu

CUTS, _ = measured((9, 0))
GATED = {
    product.shape
    for architecture in ARCHITECTURES.values()
    for product in step_products(architecture)
    if product.gated
}
BFLOAT16 = 5e-3  # ||difference|| / ||expected|| of one product whose output is rounded
OF_LAYERS = 2e-2  # of few layers


@pytest.fixture(autouse=True)
def hopper() -> None:
    if torch.cuda.get_device_capability(0) != (9, 0):
        pytest.skip("the cuts are for compute capability 9.0")


@pytest.fixture(params=sorted({shape for shape, _ in CUTS}), ids=str)
def weight(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(1)
    return torch.randn(request.param, device="cuda", dtype=torch.bfloat16) / request.param[1] ** 0.5


ROWS = [1, *ROW_TILES, 3, 13, 29, 50]


@pytest.mark.parametrize("rows", ROWS)
def test_a_streamed_product_is_the_librarys(weight: Any, rows: int) -> None:
    shape: Shape = (*weight.shape,)
    if (shape, row_tile(rows)) not in CUTS:
        pytest.skip("the library's was faster")
    products = Products([shape], CUTS, chained=True, device="cuda")
    x = torch.randn(rows, shape[1], device="cuda", dtype=torch.bfloat16)
    check(products, x, weight, gated=shape in GATED)


def check(products: Products, x: Any, weight: Any, *, gated: bool) -> None:
    """Against float32."""
    rows, size = len(x), len(weight)
    exact = x.float() @ weight.float().t()
    room = torch.full((rows, size), torch.nan, device="cuda", dtype=torch.bfloat16)
    if gated:
        found = torch.full((rows, size // 2), torch.nan, device="cuda", dtype=torch.bfloat16)
        products.gated_product(x, weight, room, found, rows)
        gate, up = exact.chunk(2, dim=1)
        exact = torch.nn.functional.silu(gate) * up
    else:
        found = products.product(x, weight, room, rows).sum(dim=0)
    assert room.isnan().all(), "the library was used"
    error = (found.float() - exact).norm() / exact.norm()
    assert float(error.nan_to_num(nan=torch.inf)) < BFLOAT16


MODELS = ("smollm2-135m", "llama-3-8b", "qwen3-30b-a3b", "phi-4")
PRIMED = {
    f"{model} {product.name}": product
    for model in MODELS
    for product in step_products(ARCHITECTURES[model])
}


@pytest.mark.parametrize("name", PRIMED)
def test_a_primed_product_is_the_librarys(name: str) -> None:
    product = PRIMED[name]
    torch.manual_seed(1)
    weight = torch.randn(product.shape, device="cuda", dtype=torch.bfloat16)
    weight /= product.shape[1] ** 0.5
    cuts = {}
    for tile in ROW_TILES:
        cut = likely_cut(product.shape, tile, gated=product.gated, in_parts=product.in_parts)
        assert cut is not None
        cuts[product.shape, tile] = cut
    with Gpu() as gpu:
        options: dict[str, Any] = {"device": "cuda", "ahead": ahead_on(gpu)(cuts)}
        products = Products([product.shape], cuts, chained=True, **options)
        for rows in ROWS:
            x = torch.randn(rows, product.shape[1], device="cuda", dtype=torch.bfloat16)
            check(products, x, weight, gated=product.gated)
        torch.cuda.synchronize()


@pytest.mark.parametrize("shape", sorted({shape for shape, _ in HOPPER_AHEAD}), ids=str)
def test_a_measured_product_that_reads_ahead_is_the_librarys(shape: Shape) -> None:
    torch.manual_seed(1)
    weight = torch.randn(shape, device="cuda", dtype=torch.bfloat16) / shape[1] ** 0.5
    with Gpu() as gpu:
        options: dict[str, Any] = {"device": "cuda", "ahead": ahead_on(gpu)(HOPPER_AHEAD)}
        products = Products([shape], HOPPER_AHEAD, chained=True, **options)
        for rows in range(1, ROW_TILES[-1] + 1):
            if (shape, row_tile(rows)) in HOPPER_AHEAD:
                x = torch.randn(rows, shape[1], device="cuda", dtype=torch.bfloat16)
                check(products, x, weight, gated=shape in GATED)
        torch.cuda.synchronize()


@pytest.mark.parametrize(
    "cut",
    [
        likely_cut((2 * 4096, 4096), 8, gated=True, in_parts=False),
        WideCut(features=32, stages=4, groups=1, gated=True),
    ],
    ids=str,
)
def test_chained_products_wait_for_what_they_read(cut: AheadCut) -> None:
    """Each multiplies what the one before has written, many times, in one graph."""
    size, links = 4096, 6  # outputs get small as a square does
    torch.manual_seed(1)
    weights = torch.randn(links, 2 * size, size, device="cuda", dtype=torch.bfloat16)
    weights /= size**0.5
    cuts = {((2 * size, size), 8): cut}
    rows = [torch.randn(4, size, device="cuda", dtype=torch.bfloat16)]
    rows += [torch.zeros_like(rows[0]) for _ in range(links)]
    room = torch.empty(4, 2 * size, device="cuda", dtype=torch.bfloat16)

    with Gpu() as gpu:
        options: dict[str, Any] = {"device": "cuda", "ahead": ahead_on(gpu)(cuts)}

        def run(chained: bool) -> Any:
            products = Products([(2 * size, size)], cuts, chained=chained, **options)
            for weight, x, out in zip(weights, rows, rows[1:], strict=False):
                products.gated_product(x, weight, room, out, 4)

        torch.cuda.synchronize()  # another stream does not wait for what was made here
        with torch.cuda.stream(torch.cuda.Stream()):
            run(chained=False)
            expected = [out.clone() for out in rows[1:]]
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin(capture_error_mode="thread_local")
            run(chained=True)
            graph.capture_end()
            for _ in range(20):
                for out in rows[1:]:
                    out.zero_()
                graph.replay()
                for found, wanted in zip(rows[1:], expected, strict=True):
                    assert wanted.abs().max() > 0
                    assert torch.equal(found, wanted)
        torch.cuda.synchronize()
        graph.reset()  # before its kernels are unloaded


@pytest.mark.parametrize("model", ["llama-3-8b", "qwen3-30b-a3b"])
def test_a_prefill_whose_products_have_more_rows_is_the_one_without(model: str) -> None:
    """448 tokens of two layers as 456 rows; what lies behind the tokens are no numbers."""
    tokens, more = 448, 456
    shape = replace(ARCHITECTURES[model], layers=2, vocabulary_size=1024)
    weights = random_weights(shape, device="cuda", dtype=torch.bfloat16)
    prompt = tuple(range(tokens))
    found = []
    for padded in ({}, {product.shape: {tokens: more} for product in step_products(shape)}):
        kernels = FusedKernels(
            shape, max_rows=8, capacity=shape.context_length, processors=131, chained=True,
            device="cuda", padded=padded,
        )  # fmt: skip
        paged = PagedDecoder.build(
            shape, weights, kernels, device="cuda", tokens=512, block_size=64
        )
        work = paged.decoder.work
        for tensor in (work.normed, work.mixed, work.inner):
            tensor.fill_(torch.nan)
        found.append(paged.prefill([Part(tuple(range(1, 8)), 0, prompt)])[0])
        assert work.delta[tokens:more].isnan().all() == bool(padded), "rows behind the step's"
    plain, with_more = found
    error = (with_more - plain).norm() / plain.norm()
    assert float(error.nan_to_num(nan=torch.inf)) < OF_LAYERS
