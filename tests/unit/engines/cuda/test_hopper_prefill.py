"""Prefill attention for Hopper attends as plain PyTorch does, its warps being threads of a host.

What is compiled for the GPU is compared there: `tests/gpu/test_cuda_engine_prefill.py`.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")


from blink_persistent.engines.cuda.kernels import reference
from blink_persistent.engines.cuda.kernels.reference import ReferenceKernels
from blink_persistent.testing import gluon_host

BLOCK_SIZE = 16
KERNEL = Path(reference.__file__).parent / "in_triton/hopper_prefill.py"
CASES = {
    "chunks, one within a block, and nobody's tokens": [(0, 30), (37, 17), (5, 0), (99, 1)],
    "more pages than the ring holds": [(3, 200)],
    "more sequences than are looked up at once": [(0, 5)] * 40,
}
HEADS = [(8, 2, 32), (6, 2, 24), (4, 4, 16)]


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("case", CASES)
def test_it_attends(case: str, stages: int, heads: tuple[int, int, int]) -> None:
    """Entries beyond the prompts' are no numbers, which must not matter."""
    torch.manual_seed(0)
    chunks, (count, kv_heads, size) = CASES[case], heads
    ends = [sum(tokens for _, tokens in chunks[:i]) for i in range(len(chunks) + 1)]
    room = max(-(-(start + tokens) // BLOCK_SIZE) for start, tokens in chunks)
    tables = torch.randperm(len(chunks) * room).view(len(chunks), room).int()
    keys, values = torch.randn(2, len(chunks) * room, kv_heads, BLOCK_SIZE, size)
    for table, (start, tokens) in zip(tables, chunks, strict=True):
        for entry in range(start + tokens, room * BLOCK_SIZE):
            for each in (keys, values):
                each[table[entry // BLOCK_SIZE], :, entry % BLOCK_SIZE] = torch.nan
    queries = torch.randn(ends[-1] + 7, count * size)
    starts, cu_seqlens = torch.tensor([start for start, _ in chunks]), torch.tensor(ends)
    expected, found = (torch.full_like(queries, -3.0) for _ in range(2))
    ReferenceKernels().prefill_attention(
        queries, keys, values, starts.int(), cu_seqlens.int(), tables, expected
    )

    module, language = gluon_host.load_kernel(KERNEL)
    tile = 1 << (size - 1).bit_length()
    pages = [
        gluon_host.Descriptor(each.view(-1, size), (BLOCK_SIZE, tile)) for each in (keys, values)
    ]
    tiles = -(-len(queries) // (64 // (count // kv_heads))) + len(chunks) - 1
    language.grid = [kv_heads, tiles]
    scale = size**-0.5 * math.log2(math.e)
    arrays = starts, cu_seqlens, tables.view(-1), found.view(-1)
    pointers = [gluon_host.Pointer(each) for each in arrays]
    for program in range(kv_heads * tiles):
        language.place = [program % kv_heads, program // kv_heads]
        module.attend_pages(
            gluon_host.Pointer(queries.view(-1)), *pages, *pointers, len(chunks), room, scale,
            count, kv_heads, size, BLOCK_SIZE, tile, stages, False,
        )  # fmt: skip
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-5)
