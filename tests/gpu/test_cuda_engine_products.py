"""Every measured cut of a product computes what the library computes, for every number of rows."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from blink_persistent.engines.cuda.kernels.choices import ROW_TILES, Shape, measured
from blink_persistent.engines.cuda.kernels.products import Products

pytestmark = pytest.mark.gpu

CUTS, _ = measured((9, 0))
GATED = {(28672, 4096), (3072, 576)}
BFLOAT16 = 5e-3  # ||difference|| / ||expected|| of one product whose output is rounded


@pytest.fixture(autouse=True)
def hopper() -> None:
    if torch.cuda.get_device_capability(0) != (9, 0):
        pytest.skip("the cuts are for compute capability 9.0")


@pytest.fixture(params=sorted({shape for shape, _ in CUTS}), ids=str)
def weight(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(1)
    return torch.randn(request.param, device="cuda", dtype=torch.bfloat16) / request.param[1] ** 0.5


@pytest.mark.parametrize("rows", [1, *ROW_TILES, 3, 13, 29, 50])
def test_a_streamed_product_is_the_librarys(weight: Any, rows: int) -> None:
    shape: Shape = (*weight.shape,)
    products = Products([shape], CUTS, max_rows=64, chained=True, device="cuda")
    x = torch.randn(rows, shape[1], device="cuda", dtype=torch.bfloat16)
    exact = x.float() @ weight.float().t()
    room = torch.full((rows, shape[0]), torch.nan, device="cuda", dtype=torch.bfloat16)
    if shape in GATED:
        found = torch.full((rows, shape[0] // 2), torch.nan, device="cuda", dtype=torch.bfloat16)
        products.gated_product(x, weight, room, found)
        gate, up = exact.chunk(2, dim=1)
        exact = torch.nn.functional.silu(gate) * up
    else:
        found = products.product(x, weight, room).sum(dim=0)
    assert room.isnan().all(), "the library was used"
    error = (found.float() - exact).norm() / exact.norm()
    assert float(error.nan_to_num(nan=torch.inf)) < BFLOAT16
