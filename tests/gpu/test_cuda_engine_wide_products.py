"""The product on the tensor cores computes what PyTorch computes in float32, also chained."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from blink_persistent.engines.cuda.kernels.ahead.wide import WideProducts
from blink_persistent.engines.cuda.kernels.cuts.choices import row_tile
from blink_persistent.engines.cuda.kernels.cuts.wide_cut import WideCut
from blink_persistent.gpu.driver import Gpu

pytestmark = pytest.mark.gpu

ROWS = [1, 3, 8, 13, 16, 29, 32, 50, 64]
CASES = {  # cut, output features, inner elements
    "splits": (WideCut(features=96, splits=2, stages=5), 6144, 4096),
    "a part of a tile": (WideCut(features=56, windows=1, stages=6, groups=1), 1000, 1088),
    "passes": (WideCut(features=248, windows=1, stages=5, blocks=131), 128256, 4096),
    "boxes": (WideCut(features=496, windows=1, stages=3, groups=4, blocks=131), 128256, 4096),
    "gated": (WideCut(features=112, stages=3, gated=True), 14336, 4096),
}


@pytest.fixture(autouse=True)
def hopper() -> None:
    if torch.cuda.get_device_capability(0) != (9, 0):
        pytest.skip("the kernels are for compute capability 9.0")


@pytest.mark.parametrize("case", CASES)
def test_a_product_is_pytorchs(case: str) -> None:
    check(*CASES[case], ROWS)


def check(cut: WideCut, size: int, depth: int, numbers: list[int]) -> None:
    """Launched twice, chained: the second is placed while the first ends."""
    torch.manual_seed(1)
    shape = size * (2 if cut.gated else 1), depth
    weight = torch.randn(shape, device="cuda", dtype=torch.bfloat16) / depth**0.5
    tiles = {tile for rows in numbers if (tile := row_tile(rows)) is not None}
    with Gpu() as gpu:
        products = WideProducts(gpu, [(cut, tile) for tile in tiles])
        for rows in numbers:
            x = torch.randn(rows, depth, device="cuda", dtype=torch.bfloat16)
            tile = row_tile(rows)
            assert tile is not None
            found = [empty(cut, rows, size) for _ in range(2)]
            for out in found:
                products(x, weight, out, cut, tile, chained=True)
            exact = x.float() @ weight.float().t()
            if cut.gated:
                gate, up = exact.chunk(2, dim=1)
                exact = torch.nn.functional.silu(gate) * up
            for out in found:
                error = (out.float().sum(dim=0) - exact).norm() / exact.norm()
                assert float(error) < (5e-3 if cut.gated else 1e-3), rows
        torch.cuda.synchronize()


def empty(cut: WideCut, rows: int, size: int) -> Any:
    kind = torch.bfloat16 if cut.gated else torch.float32
    return torch.full((cut.splits, rows, size), torch.nan, device="cuda", dtype=kind)
