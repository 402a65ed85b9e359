"""Which kernel computes a product, and what it is given."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from blink_persistent.engines.cuda.kernels.choices import ROW_TILES, Cut
from blink_persistent.engines.cuda.kernels.primed import no_primed
from blink_persistent.engines.cuda.kernels.primed_cut import PrimedCut, PrimedKernel
from blink_persistent.engines.cuda.kernels.products import Products
from blink_persistent.testing.primed_host import HostProducts

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

SIZE, DEPTH = 72, 256
PLAIN = PrimedCut(blocks=2, splits=2, warps=2, windows=2, stages=3)
WHOLE = PrimedCut(blocks=3, warps=2, windows=2, stages=3)
GATED = PrimedCut(blocks=2, warps=2, windows=2, stages=3, gated=True)
BFLOAT16 = 5e-3  # ||difference|| / ||expected||


class OnHost:
    """Runs primed products lane by lane on this host."""

    def __init__(self) -> None:
        cuts = PLAIN, WHOLE, GATED
        kernels = {PrimedKernel.of(cut, tile) for cut in cuts for tile in ROW_TILES[:2]}
        self._products = HostProducts(kernels)
        self.chained: list[bool] = []

    def __call__(
        self, x: Any, weight: Any, out: Any, cut: PrimedCut, row_tile: int, *, chained: bool
    ) -> None:
        size = len(weight) // (2 if cut.gated else 1)
        addresses = x.data_ptr(), weight.data_ptr(), out.data_ptr()
        self._products.run(cut, row_tile, (len(x), size, x.shape[1]), addresses)
        self.chained.append(chained)


def products(shape: tuple[int, int], cut: PrimedCut) -> tuple[Products, OnHost]:
    cuts, primed = {(shape, tile): cut for tile in ROW_TILES[:2]}, OnHost()
    made = Products([shape], cuts, chained=True, device="cpu", primed=primed)
    return made, primed


def operands(rows: int, size: int) -> tuple[Any, Any]:
    torch.manual_seed(rows)
    weight = torch.randn(size, DEPTH) / DEPTH**0.5
    return torch.randn(rows, DEPTH).bfloat16(), weight.bfloat16()


def close(found: Any, expected: Any) -> bool:
    return float((found.float() - expected).norm() / expected.norm()) < BFLOAT16


@pytest.mark.parametrize("rows", [1, 7, 16])
def test_a_primed_product_comes_in_parts(rows: int) -> None:
    made, primed = products((SIZE, DEPTH), PLAIN)
    x, weight = operands(rows, SIZE)
    library = torch.full((rows, SIZE), torch.nan)
    parts = made.product(x, weight, library)
    assert parts.shape == (2, rows, SIZE)
    assert close(parts.sum(dim=0), x.float() @ weight.float().t())
    assert library.isnan().all()
    assert primed.chained == [True]


def test_a_primed_gate_and_a_primed_head() -> None:
    x, weight = operands(9, 2 * SIZE)
    expected = x.float() @ weight.float().t()
    out = torch.full((9, SIZE), torch.nan, dtype=torch.bfloat16)
    made, _ = products((2 * SIZE, DEPTH), GATED)
    made.gated_product(x, weight, torch.empty(9, 2 * SIZE), out)
    gate, up = expected.chunk(2, dim=1)
    assert close(out, torch.nn.functional.silu(gate) * up)
    logits = torch.full((9, 2 * SIZE), torch.nan)
    made, _ = products((2 * SIZE, DEPTH), WHOLE)
    made.vocabulary_product(x, weight, logits)
    torch.testing.assert_close(logits, expected)


def test_rows_without_a_cut_are_the_librarys() -> None:
    made, primed = products((SIZE, DEPTH), PLAIN)
    x, weight = operands(17, SIZE)
    out = torch.empty(17, SIZE, dtype=torch.bfloat16)
    assert made.product(x, weight, out).data_ptr() == out.data_ptr()
    assert primed.chained == []


def test_a_head_of_the_shape_of_gate_and_up_is_the_librarys() -> None:
    x, weight = operands(9, 2 * SIZE)
    logits = torch.full((9, 2 * SIZE), torch.nan)
    made, primed = products((2 * SIZE, DEPTH), GATED)
    made.vocabulary_product(x, weight, logits)
    torch.testing.assert_close(logits, x.float() @ weight.float().t())
    assert primed.chained == []


def test_primed_cuts_need_a_gpu_and_others_do_not() -> None:
    no_primed({((SIZE, DEPTH), 8): Cut(features=16)})
    with pytest.raises(ValueError, match="GPU"):
        no_primed({((SIZE, DEPTH), 8): PLAIN})
