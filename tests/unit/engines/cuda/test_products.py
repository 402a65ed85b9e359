"""Which kernel computes a product, and what it is given."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from blink_persistent.engines.cuda.kernels.ahead.products import no_ahead
from blink_persistent.engines.cuda.kernels.cuts.choices import ROW_TILES, AheadCut, Cut
from blink_persistent.engines.cuda.kernels.cuts.primed_cut import PrimedCut, PrimedKernel
from blink_persistent.engines.cuda.kernels.cuts.wide_cut import WideCut, WideKernel
from blink_persistent.engines.cuda.kernels.products import Products
from blink_persistent.engines.cuda.kernels.protocol import Projected
from blink_persistent.engines.cuda.kernels.reference import ReferenceKernels
from blink_persistent.testing.primed_host import HostProducts, Way
from blink_persistent.testing.wide_host import HostWideProducts

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

SIZE, DEPTH = 72, 256
PLAIN = PrimedCut(blocks=2, splits=2, warps=2, windows=2, stages=3)
WHOLE = PrimedCut(blocks=3, warps=2, windows=2, stages=3)
GATED = PrimedCut(blocks=2, warps=2, windows=2, stages=3, gated=True)
WIDE = WideCut(features=40, splits=2, windows=1, stages=3, groups=1)
WIDE_WHOLE = WideCut(features=64, windows=1, stages=3, groups=1)
WIDE_GATED = WideCut(features=24, windows=1, stages=3, groups=1, gated=True)
TILES = ROW_TILES[:2]
BFLOAT16 = 5e-3  # ||difference|| / ||expected||


class OnHost:
    """Runs products that read ahead lane by lane on this host."""

    def __init__(self) -> None:
        cuts, wide = (PLAIN, WHOLE, GATED), (WIDE, WIDE_WHOLE, WIDE_GATED)
        self._products = HostProducts(PrimedKernel.of(cut, tile) for cut in cuts for tile in TILES)
        self._wide = HostWideProducts(WideKernel.of(cut, tile) for cut in wide for tile in TILES)
        self.chained: list[bool] = []

    def __call__(
        self, x: Any, weight: Any, out: Any, cut: AheadCut, row_tile: int, *, chained: bool
    ) -> None:
        size = len(weight) // (2 if cut.gated else 1)
        addresses = x.data_ptr(), weight.data_ptr(), out.data_ptr()
        sizes = len(x), size, x.shape[1]
        if isinstance(cut, WideCut):
            self._wide.run(cut, row_tile, sizes, addresses, Way())
        else:
            self._products.run(cut, row_tile, sizes, addresses)
        self.chained.append(chained)


def products(shape: tuple[int, int], cut: AheadCut) -> tuple[Products, OnHost]:
    cuts, ahead = {(shape, tile): cut for tile in TILES}, OnHost()
    made = Products([shape], cuts, chained=True, device="cpu", ahead=ahead)
    return made, ahead


def operands(rows: int, size: int) -> tuple[Any, Any]:
    torch.manual_seed(rows)
    weight = torch.randn(size, DEPTH) / DEPTH**0.5
    return torch.randn(rows, DEPTH).bfloat16(), weight.bfloat16()


def close(found: Any, expected: Any) -> bool:
    return float((found.float() - expected).norm() / expected.norm()) < BFLOAT16


@pytest.mark.parametrize("rows", [1, 7, 16])
@pytest.mark.parametrize("cut", [PLAIN, WIDE], ids=str)
def test_a_product_that_reads_ahead_comes_in_parts(cut: AheadCut, rows: int) -> None:
    made, ahead = products((SIZE, DEPTH), cut)
    x, weight = operands(rows, SIZE)
    library = torch.full((rows, SIZE), torch.nan)
    parts = made.product(x, weight, library, rows)
    assert parts.shape == (2, rows, SIZE)
    assert close(parts.sum(dim=0), x.float() @ weight.float().t())
    assert library.isnan().all()
    assert ahead.chained == [True]


@pytest.mark.parametrize(("gated", "whole"), [(GATED, WHOLE), (WIDE_GATED, WIDE_WHOLE)], ids=str)
def test_a_gate_and_a_head_that_read_ahead(gated: AheadCut, whole: AheadCut) -> None:
    x, weight = operands(9, 2 * SIZE)
    expected = x.float() @ weight.float().t()
    out = torch.full((9, SIZE), torch.nan, dtype=torch.bfloat16)
    made, _ = products((2 * SIZE, DEPTH), gated)
    made.gated_product(x, weight, torch.empty(9, 2 * SIZE), out, 9)
    gate, up = expected.chunk(2, dim=1)
    assert close(out, torch.nn.functional.silu(gate) * up)
    logits = torch.full((9, 2 * SIZE), torch.nan)
    made, _ = products((2 * SIZE, DEPTH), whole)
    made.vocabulary_product(x, weight, logits)
    torch.testing.assert_close(logits, expected)


def test_rows_without_a_cut_are_the_librarys() -> None:
    made, ahead = products((SIZE, DEPTH), PLAIN)
    x, weight = operands(17, SIZE)
    out = torch.empty(17, SIZE, dtype=torch.bfloat16)
    assert made.product(x, weight, out, 17).data_ptr() == out.data_ptr()
    assert ahead.chained == []


@pytest.mark.parametrize(
    ("rows", "room", "written"),
    [(68, 80, 72), (68, 71, 68), (67, 80, 67)],
    ids=["padded", "no room", "not in the table"],
)
@pytest.mark.parametrize("gated", [False, True])
def test_the_library_multiplies_more_rows_than_there_are(
    monkeypatch: pytest.MonkeyPatch, gated: bool, rows: int, room: int, written: int
) -> None:
    """The rows behind are no numbers, and the first ones do not depend on them."""
    made = Products([], {}, chained=False, device="cpu", padded={(2 * SIZE, DEPTH): {68: 72}})
    x, weight = operands(room, 2 * SIZE)
    x[rows:] = torch.nan
    into = torch.full((room, 2 * SIZE), -3.0).bfloat16()
    exact = x[:rows].float() @ weight.float().t()
    if gated:
        monkeypatch.setattr(made, "swiglu", ReferenceKernels().swiglu)
        out = torch.full((room, SIZE), -3.0).bfloat16()
        made.gated_product(x, weight, into, out, rows)
        gate, up = exact.chunk(2, dim=1)
        assert close(out[:rows], torch.nn.functional.silu(gate) * up)
        assert (out[rows:] == -3).all()
    else:
        parts = made.product(x, weight, into, rows)
        assert parts.shape == (1, rows, 2 * SIZE)
        assert close(parts[0], exact)
    assert into[rows:written].isnan().all()
    assert (into[written:] == -3).all()


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("cut", [PLAIN, WHOLE, None], ids=["parts", "one part", "library"])
def test_some_of_a_projections_tokens_know_how_many_the_step_has(
    cut: PrimedCut | None, rows: int
) -> None:
    """Also of one part and of one row, where only the stride can tell."""
    padded = {(SIZE, DEPTH): {rows: rows + 1}}
    made = Products([], {}, chained=False, device="cpu", padded=padded)
    if cut is not None:
        made, _ = products((SIZE, DEPTH), cut)
    x, weight = operands(9, SIZE)
    nothing: Any = None
    places = torch.zeros(rows, dtype=torch.int32)
    qkv = made.product(x, weight, torch.empty(9, SIZE).bfloat16(), rows)
    step = Projected(qkv, nothing, nothing, places, places, torch.empty(rows, SIZE))
    for tokens in (slice(None), slice(1), slice(rows - 1, None)):
        assert step.only(tokens).step_tokens == rows


@pytest.mark.parametrize("gated", [GATED, WIDE_GATED], ids=str)
def test_a_head_of_the_shape_of_gate_and_up_is_the_librarys(gated: AheadCut) -> None:
    x, weight = operands(9, 2 * SIZE)
    logits = torch.full((9, 2 * SIZE), torch.nan)
    made, ahead = products((2 * SIZE, DEPTH), gated)
    made.vocabulary_product(x, weight, logits)
    torch.testing.assert_close(logits, x.float() @ weight.float().t())
    assert ahead.chained == []


@pytest.mark.parametrize("cut", [PLAIN, WIDE], ids=str)
def test_cuts_that_read_ahead_need_a_gpu_and_others_do_not(cut: AheadCut) -> None:
    no_ahead({((SIZE, DEPTH), 8): Cut(features=16)})
    with pytest.raises(ValueError, match="GPU"):
        no_ahead({((SIZE, DEPTH), 8): cut})
