"""Attention that reads ahead attends, rotates and appends as plain PyTorch does, in a graph too."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from blink_persistent.engines.cuda.architectures import ARCHITECTURES
from blink_persistent.engines.cuda.kernels.ahead.attention import AheadAttention
from blink_persistent.engines.cuda.kernels.cuts.choices import ROW_TILES, AnyAttention
from blink_persistent.engines.cuda.kernels.cuts.direct_attention_cut import DirectCut
from blink_persistent.engines.cuda.kernels.cuts.even_attention_cut import EvenCut
from blink_persistent.engines.cuda.kernels.protocol import Heads, Projected, Rotary
from blink_persistent.engines.cuda.kernels.reference import ReferenceKernels
from blink_persistent.gpu.driver import Gpu
from blink_server.importers.checkpoint import Architecture

pytestmark = pytest.mark.gpu

BLOCK_SIZE, CONTEXT = 64, 2048
BFLOAT16 = 1e-2  # ||difference|| / ||expected||
LENGTHS = (1024, 0, 1, 17, 65, 2048, 500, 63)
CUTS = [
    *(DirectCut(programs=3), DirectCut(clustered=True), DirectCut(warps=8, resident=2)),
    DirectCut(warps=8, resident=1, clustered=True, most=8),
    *(EvenCut(warps=8, pairs=6, resident=1), EvenCut(warps=4, pairs=3, resident=2)),
    *(EvenCut(warps=8, pairs=4, resident=1), EvenCut(warps=4, pairs=2, resident=2)),
]


@pytest.fixture(autouse=True)
def hopper() -> None:
    if torch.cuda.get_device_capability(0) != (9, 0):
        pytest.skip("the kernel is for compute capability 9.0")


class Row:
    """The inputs of one step's attention."""

    def __init__(
        self,
        shape: Architecture,
        rows: int,
        parts: int,
        block_size: int = BLOCK_SIZE,
        *,
        others: int = 0,
        rounded: bool = False,
    ) -> None:
        """`others`: tokens of the step ahead of the rows'. `rounded`: projected as the library
        does it."""

        def randn(*size: int, dtype: Any = torch.float32) -> Any:
            return torch.randn(size, device="cuda", dtype=dtype)

        torch.manual_seed(rows)
        size, bf16 = shape.head_dim, torch.bfloat16
        width = (shape.heads + 2 * shape.kv_heads) * size
        lengths = [LENGTHS[row % len(LENGTHS)] for row in range(rows)]
        self.lengths = torch.tensor(lengths, device="cuda", dtype=torch.int32)
        max_blocks = CONTEXT // block_size
        order = torch.randperm(rows * max_blocks, device="cuda").int()
        self.tables = order.view(rows, max_blocks)
        pages = rows * max_blocks, shape.kv_heads, block_size, size
        self.keys, self.values = randn(*pages, dtype=bf16), randn(*pages, dtype=bf16)
        last = (self.lengths - 1).clamp(min=0)
        block = self.tables.gather(1, (last // block_size).long()[:, None])[:, 0]
        entries = torch.where(self.lengths > 0, block * block_size + last % block_size, -1)
        norms = [torch.rand(size, device="cuda").to(bf16) + 0.5 for _ in range(2)]
        heads = Heads(
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            head_dim=size,
            bias=randn(width, dtype=bf16) if shape.attention_bias else None,
            q_norm=norms[0] if shape.qk_norm else None,
            k_norm=norms[1] if shape.qk_norm else None,
            epsilon=1e-6,
        )
        angle = 7 * torch.rand(CONTEXT, size // 2, device="cuda")
        self.new = Projected(
            qkv=randn(parts, others + rows, width, dtype=bf16 if rounded else torch.float32)[
                :, others:
            ],
            heads=heads,
            rotary=Rotary(angle.cos(), angle.sin()),
            positions=last,
            entries=entries.int(),
            queries=torch.zeros(rows, shape.heads * size, device="cuda", dtype=bf16),
        )

    def attend(self, kernels: Any, **options: Any) -> tuple[Any, Any, Any]:
        """The mixture, and the pages afterwards."""
        keys, values = self.keys.clone(), self.values.clone()
        out = torch.full_like(self.new.queries, torch.nan)
        kernels(self.new, keys, values, self.lengths, self.tables, out, **options)
        return out, keys, values


def same(found: tuple[Any, Any, Any], expected: tuple[Any, Any, Any]) -> bool:
    errors = [
        float((a.float() - b.float()).norm() / b.float().norm())
        for a, b in zip(found, expected, strict=True)
    ]
    return all(error < BFLOAT16 for error in errors)


@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("model", ["smollm2-135m", "llama-3-8b", "qwen2.5-7b", "qwen3-32b"])
def test_it_attends_as_plain_pytorch_does(model: str, cut: AnyAttention) -> None:
    shape = ARCHITECTURES[model]
    if isinstance(cut, EvenCut) and not cut.fits(shape.head_dim, shape.heads // shape.kv_heads):
        pytest.skip("there is no room for its blocks")
    with Gpu() as gpu:
        sizes: dict[str, Any] = {"max_rows": 64, "processors": 131, "device": "cuda"}
        attention = AheadAttention(gpu, shape, cuts=dict.fromkeys(ROW_TILES, cut), **sizes)
        for rows, parts in ((1, 4), (3, 1), (16, 2), (33, 1), (64, 2)):
            row = Row(shape, rows, parts)
            expected = row.attend(ReferenceKernels().attend_new)
            for _ in range(3):  # what blocks count is left as it was
                assert same(row.attend(attention, chained=False), expected)
        torch.cuda.synchronize()


@pytest.mark.parametrize("cut", [cut for cut in CUTS if isinstance(cut, EvenCut)], ids=str)
@pytest.mark.parametrize("model", ["smollm2-135m", "llama-3-8b", "qwen2.5-7b", "qwen3-32b"])
def test_rows_of_a_mixed_step_do_too(model: str, cut: EvenCut) -> None:
    """What the engine's own products leave, of which they are some rows, and what the library's."""
    shape = ARCHITECTURES[model]
    if not cut.fits(shape.head_dim, shape.heads // shape.kv_heads):
        pytest.skip("there is no room for its blocks")
    with Gpu() as gpu:
        sizes: dict[str, Any] = {"max_rows": 64, "processors": 131, "device": "cuda"}
        attention = AheadAttention(gpu, shape, cuts=dict.fromkeys(ROW_TILES, cut), **sizes)
        for rows, others, parts in ((16, 48, 2), (8, 3, 4), (16, 256, 0), (32, 601, 0), (64, 1, 0)):
            row = Row(shape, rows, parts or 1, others=others, rounded=parts == 0)
            assert attention.takes(row.new)
            expected = row.attend(ReferenceKernels().attend_new)
            for _ in range(2):
                assert same(row.attend(attention, chained=False), expected)
        torch.cuda.synchronize()


@pytest.mark.parametrize("processors", [131, 100, 3])
@pytest.mark.parametrize("block_size", [16, 32, 64, 128, 256])
def test_even_shares_are_right_on_any_gpu_and_in_blocks_of_any_size(
    processors: int, block_size: int
) -> None:
    shape = ARCHITECTURES["llama-3-8b"]
    few, many = EvenCut(warps=8, pairs=6, resident=1), EvenCut(warps=4, pairs=3, resident=2)
    cuts = {8: few, 16: few, 32: many, 64: many}
    with Gpu() as gpu:
        sizes: dict[str, Any] = {"max_rows": 64, "processors": processors, "device": "cuda"}
        even = AheadAttention(gpu, shape, cuts=cuts, **sizes)
        for rows in (2, 9, 16, 17, 32, 63):
            row = Row(shape, rows, 1, block_size)
            expected = row.attend(ReferenceKernels().attend_new)
            for _ in range(2):
                assert same(row.attend(even, chained=False), expected)
        torch.cuda.synchronize()


@pytest.mark.parametrize(
    ("cut", "rows"),
    [
        *((DirectCut(), 1), (DirectCut(clustered=True), 1)),
        *((EvenCut(warps=8, pairs=6, resident=1), 8), (EvenCut(warps=4, pairs=3, resident=2), 7)),
    ],
    ids=str,
)
def test_chained_after_what_it_reads_it_waits(cut: AnyAttention, rows: int) -> None:
    """The projection is written by the kernel ahead, again and again, in one graph."""
    shape = ARCHITECTURES["llama-3-8b"]
    row = Row(shape, rows, 2)
    projections = [torch.randn_like(row.new.qkv) for _ in range(8)]
    with Gpu() as gpu:
        sizes: dict[str, Any] = {"max_rows": 8, "processors": 131, "device": "cuda"}
        attention = AheadAttention(gpu, shape, cuts={8: cut}, **sizes)
        outs = [torch.zeros_like(row.new.queries) for _ in projections]
        pages = row.keys.clone(), row.values.clone()

        def run(chained: bool) -> None:
            for projection, out in zip(projections, outs, strict=True):
                torch.mul(projection, 1.0, out=row.new.qkv)  # a kernel, not a copy
                attention(row.new, *pages, row.lengths, row.tables, out, chained=chained)

        torch.cuda.synchronize()  # another stream does not wait for what was made here
        with torch.cuda.stream(torch.cuda.Stream()):
            run(chained=False)
            expected = [out.clone() for out in outs]
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin(capture_error_mode="thread_local")
            run(chained=True)
            graph.capture_end()
            for _ in range(20):
                for out in outs:
                    out.zero_()
                graph.replay()
                for found, wanted in zip(outs, expected, strict=True):
                    assert wanted.abs().max() > 0
                    assert torch.equal(found, wanted)
        torch.cuda.synchronize()
        graph.reset()  # before its kernels are unloaded
