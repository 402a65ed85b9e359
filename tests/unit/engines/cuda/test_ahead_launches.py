"""Decode steps by the kernels in CUDA C++ as the engine launches them, run lane by lane here."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")
pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")

from blink_persistent.engines.cuda.kernels.ahead.attention import AheadAttention
from blink_persistent.engines.cuda.kernels.ahead.primed_norm import PrimedNorm, primed_norm_for
from blink_persistent.engines.cuda.kernels.ahead.products import AheadProducts, ahead_on
from blink_persistent.engines.cuda.kernels.cuts.direct_attention_cut import DirectCut
from blink_persistent.engines.cuda.kernels.cuts.even_attention_cut import EvenCut
from blink_persistent.engines.cuda.kernels.cuts.primed_cut import PrimedCut, PrimedKernel
from blink_persistent.engines.cuda.kernels.fused import FusedKernels
from blink_persistent.engines.cuda.kernels.protocol import Heads, Projected, Rotary
from blink_persistent.engines.cuda.kernels.reference import ReferenceKernels
from blink_persistent.engines.cuda.weights import random_weights
from blink_persistent.testing.paged_decoder import INACTIVE, PagedDecoder, Part
from blink_persistent.testing.primed_cuts import likely_cuts
from blink_persistent.testing.primed_host import HostGpu, Launch
from blink_server.testing.memory_checkpoint import tiny_architecture

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

HEADS = {"heads": 6, "kv_heads": 2, "head_dim": 64, "qk_norm": True, "attention_bias": True}
SIZES = {"hidden_size": 192, "intermediate_size": 256, "vocabulary_size": 150, "layers": 2}
SHAPE = tiny_architecture(**HEADS, **SIZES, context_length=256)
BLOCK_SIZE, MAX_BLOCKS, CONTEXT = 32, 8, 256
DIRECT = DirectCut(warps=2, programs=4)
CLUSTERED = DirectCut(warps=2, programs=4, clustered=True)
EVEN = EvenCut(warps=4, pairs=3, resident=2)
BFLOAT16 = 2e-2  # ||difference|| / ||expected|| that bfloat16 arithmetic may make in few layers


@pytest.fixture(autouse=True)
def stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))


@pytest.fixture
def gpu() -> Any:
    return HostGpu()


def distance(found: Any, expected: Any) -> float:
    return float((found.float() - expected.float()).norm() / expected.float().norm())


def test_a_product_gets_its_sizes_in_order(gpu: Any) -> None:
    cut = PrimedCut(blocks=3, splits=2, warps=2, windows=2, stages=3)
    products = ahead_on(gpu)({((72, 256), 8): cut})
    assert isinstance(products, AheadProducts)
    x, weight = torch.randn(5, 256).bfloat16(), torch.randn(72, 256).bfloat16()
    out = torch.full((2, 5, 72), torch.nan)
    products(x, weight, out, cut, 8, chained=True)
    torch.testing.assert_close(out.sum(dim=0), x.float() @ weight.float().t(), atol=1e-4, rtol=1e-4)
    name = PrimedKernel.of(cut, 8).name
    assert gpu.launches == [Launch(name, 6, 64, cut.shared_bytes(8), chained=True)]
    assert ahead_on(gpu)({}) is None


def test_no_kernels_are_made_for_the_products_of_other_models() -> None:
    cuts, given = likely_cuts(SHAPE), []
    other = {((640, 128), 8): PrimedCut(blocks=40)}
    sizes: dict[str, Any] = {"max_rows": 8, "processors": 131, "device": "cpu"}
    FusedKernels(
        SHAPE,
        capacity=CONTEXT,
        chained=False,
        cuts=cuts | other,
        make_ahead=given.append,
        **sizes,
    )
    assert given == [cuts]


@pytest.mark.parametrize(
    ("size", "parts", "rows"), [(64, 1, 1), (576, 4, 3), (2052, 9, 2), (5120, 6, 1)]
)
def test_a_norm_of_parts_is_that_of_plain_pytorch(
    gpu: Any, size: int, parts: int, rows: int
) -> None:
    norm = PrimedNorm(gpu, size)
    delta, gain = torch.randn(parts, rows, size), torch.rand(size).bfloat16()
    first = torch.randn(rows, size)
    found, expected = (
        (first.clone(), torch.full((rows, size), torch.nan).bfloat16()) for _ in range(2)
    )
    norm(delta, gain, 1e-5, *found, chained=True)
    ReferenceKernels().add_norm(delta, gain, 1e-5, *expected)
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[1], expected[1], rtol=2**-7, atol=1e-6)
    (launch,) = gpu.launches
    assert launch.blocks == rows


def projected(rows: int, *, others: int = 0, rounded: bool = False) -> Projected:
    """`others`: tokens of the same step ahead of the rows'. `rounded`: as the library does it."""
    tokens = others + rows
    size = SHAPE.head_dim
    width = (SHAPE.heads + 2 * SHAPE.kv_heads) * size
    heads = Heads(
        heads=SHAPE.heads,
        kv_heads=SHAPE.kv_heads,
        head_dim=size,
        bias=torch.randn(width).bfloat16(),
        q_norm=(torch.rand(size) + 0.5).bfloat16(),
        k_norm=(torch.rand(size) + 0.5).bfloat16(),
        epsilon=1e-6,
    )
    angle = 7 * torch.rand(CONTEXT, size // 2)
    entries, parts = torch.zeros(tokens, dtype=torch.int32), torch.randn(2, tokens, width)
    step = Projected(
        qkv=parts[:1].bfloat16() if rounded else parts,
        heads=heads,
        rotary=Rotary(angle.cos(), angle.sin()),
        positions=entries.clone(),
        entries=entries,
        queries=torch.full((tokens, SHAPE.heads * size), torch.nan).bfloat16(),
    )
    return step.only(slice(others, None))


@pytest.mark.parametrize("lengths", [(70,), (200, 0, 33, 1)])
@pytest.mark.parametrize("others", [0, 5])
@pytest.mark.parametrize(
    ("cut", "rounded"),
    [(DIRECT, False), (CLUSTERED, False), (EVEN, False), (EVEN, True)],
    ids=str,
)
def test_attention_is_that_of_plain_pytorch(
    gpu: Any, cut: Any, rounded: bool, others: int, lengths: tuple[int, ...]
) -> None:
    torch.manual_seed(1)
    rows = len(lengths)
    sizes: dict[str, Any] = {"max_rows": 8, "processors": 3, "device": "cpu"}
    attention = AheadAttention(gpu, SHAPE, cuts={8: cut}, **sizes)
    pages = rows * MAX_BLOCKS
    new = projected(rows, others=others, rounded=rounded)
    tables = torch.randperm(pages).int().view(rows, MAX_BLOCKS)
    lengths_given = torch.tensor(lengths, dtype=torch.int32)
    for row, length in enumerate(lengths):
        at = max(length - 1, 0)
        block = tables[row, at // BLOCK_SIZE]
        new.positions[row] = at
        new.entries[row] = block * BLOCK_SIZE + at % BLOCK_SIZE if length else -1
    cache = torch.randn(2, pages, SHAPE.kv_heads, BLOCK_SIZE, SHAPE.head_dim).bfloat16()
    found = []
    for attend, options in ((ReferenceKernels().attend_new, {}), (attention, {"chained": False})):
        keys, values = cache.clone()
        out = torch.full_like(new.queries, torch.nan)
        attend(new, keys, values, lengths_given, tables, out, **options)
        found.append((out, keys, values))
    for expected, other in zip(*found, strict=True):
        torch.testing.assert_close(other, expected, atol=0.03, rtol=0.02)
    most = 4 if cut is CLUSTERED else 6
    splits = most if rows == 1 else 1
    shared, blocks = cut.shared_bytes(SHAPE.head_dim, 3), rows * SHAPE.kv_heads * splits
    cluster = splits if cut is CLUSTERED else 1
    if cut is EVEN:
        shared, blocks = shared + 1024, 6
    name, threads = cut.kernel_name(64), 160 if cut is EVEN else 64
    expected_launch = Launch(name, blocks, threads, shared, chained=False, cluster=cluster)
    assert gpu.launches == [expected_launch]


def test_what_the_library_computed_is_for_even_shares_or_the_other_kernels(gpu: Any) -> None:
    sizes: dict[str, Any] = {"max_rows": 64, "processors": 3, "device": "cpu"}
    attention = AheadAttention(gpu, SHAPE, cuts={64: EVEN}, **sizes)
    for rounded in (False, True):
        assert attention.takes(projected(64, others=100, rounded=rounded))
        assert not attention.takes(projected(65, rounded=rounded))
    few = AheadAttention(gpu, SHAPE, cuts={8: DIRECT}, **sizes)
    assert few.takes(projected(8))
    assert not few.takes(projected(8, rounded=True))
    assert not few.takes(projected(9))
    fewer = AheadAttention(gpu, SHAPE, cuts={4: DIRECT}, **sizes)
    assert fewer.takes(projected(4))
    assert not fewer.takes(projected(5))
    none = AheadAttention(gpu, SHAPE, cuts={}, **sizes)
    assert not none.takes(projected(1))
    assert PrimedNorm(gpu, 192, {16}).takes(torch.empty(2, 16, 192))
    assert not PrimedNorm(gpu, 192, {16}).takes(torch.empty(2, 8, 192))
    assert primed_norm_for(gpu, 192, ()) is None
    norm = PrimedNorm(gpu, 192)
    assert norm.takes(torch.empty(2, 64, 192))
    assert not norm.takes(torch.empty(2, 65, 192))
    assert not norm.takes(torch.empty(1, 8, 192, dtype=torch.bfloat16))
    assert not norm.takes(torch.empty(0, 8, 192))
    assert primed_norm_for(gpu, 191) is None


ROWS = [Part((3, 1, 7, 9, 11), 70, (5,)), INACTIVE, Part((2, 4), 16, (9,)), Part((20,), 0, (1,))]
ACTIVE = [row for row, part in enumerate(ROWS) if part is not INACTIVE]
interpreted = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="Triton's interpreter is not used here"
)


def both_decoders(gpu: Any) -> Iterator[PagedDecoder]:
    """With plain PyTorch, then with kernels that read ahead in steps of up to eight tokens; the
    same KV before it."""
    torch.manual_seed(1)
    sizes: dict[str, Any] = {"max_rows": 8, "processors": 131, "device": "cpu"}
    cuts = likely_cuts(SHAPE)
    fused = FusedKernels(
        SHAPE,
        capacity=CONTEXT,
        chained=False,
        cuts={key: cut for key, cut in cuts.items() if key[1] == 8},
        make_ahead=ahead_on(gpu),
        ahead_attention=AheadAttention(gpu, SHAPE, cuts={8: EVEN}, **sizes),
        primed_norm=PrimedNorm(gpu, SHAPE.hidden_size),
        **sizes,
    )
    weights = random_weights(SHAPE, device="cpu", dtype=torch.bfloat16)
    cache = None
    for kernels in (ReferenceKernels(), fused):
        paged = PagedDecoder.build(SHAPE, weights, kernels, device="cpu")
        pages = paged.decoder.cache.pages
        cache = pages.normal_().clone() if cache is None else pages.copy_(cache)
        yield paged


def kinds_of(gpu: Any) -> list[str]:
    """Of the kernels in CUDA C++ that were launched."""
    return [launch.name.split("_")[1] for launch in gpu.launches]


A_LAYER = ["product", "even", "product", "norm", "gated", "product", "norm"]


@interpreted
def test_a_decode_step_is_that_of_plain_pytorch(gpu: Any) -> None:
    plain, found = (
        (paged.decode(ROWS)[ACTIVE], paged.decoder.cache.pages) for paged in both_decoders(gpu)
    )
    for expected, other in zip(plain, found, strict=True):
        assert distance(other, expected) < BFLOAT16
    assert kinds_of(gpu) == [*(A_LAYER * SHAPE.layers), "product"]


@interpreted
@pytest.mark.parametrize(("tokens", "a_layer"), [(4, A_LAYER), (20, ["even"])])
def test_rows_of_a_mixed_step_have_even_shares_of_any_product(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, tokens: int, a_layer: list[str]
) -> None:
    """Of the engine's own, of which they get some rows of several parts, and of the library's."""
    # Triton's interpreter takes the bits of bfloat16 for integers that are to be multiplied.
    plain_attention = ReferenceKernels().prefill_attention
    monkeypatch.setattr(FusedKernels, "prefill_attention", staticmethod(plain_attention))
    packed = [Part((13, 14), 5, (7,) * (tokens - 1))]
    plain, found = (
        (*paged.mixed(packed, ROWS, key=(2, tokens, len(ROWS))), paged.decoder.cache.pages)
        for paged in both_decoders(gpu)
    )
    for expected, other in zip(plain, found, strict=True):
        where = ACTIVE if len(expected) == len(ROWS) else slice(None)
        assert distance(other[where], expected[where]) < BFLOAT16
    assert kinds_of(gpu) == [*(a_layer * SHAPE.layers), "product"]
