"""Prefill attention for Hopper attends as plain PyTorch does, replayed from a graph too."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from blink_persistent.engines.cuda.architectures import ARCHITECTURES
from blink_persistent.engines.cuda.kernels.cuts.choices import PageTiling
from blink_persistent.engines.cuda.kernels.page_attention import BLOCK_SIZE, PageAttention
from blink_persistent.engines.cuda.kernels.reference import ReferenceKernels
from blink_server.importers.checkpoint import Architecture

pytestmark = pytest.mark.gpu

BFLOAT16 = 1e-2  # ||difference|| / ||expected||
UNCHAINED = {"CHAINED": False, "launch_pdl": False}
STEPS = {  # start and tokens of each prompt
    "one prompt": [(0, 1024)],
    "prompts of all lengths": [(0, 1), (0, 64), (0, 65), (99, 129), (5, 0), (0, 300), (64, 17)],
    "a late chunk": [(1900, 148)],
}
MODELS = ["llama-3-8b", "smollm2-135m", "qwen2.5-7b", "qwen3-32b", "qwen3-30b-a3b", "phi-4"]
TILINGS = [PageTiling(), PageTiling(stages=2)]


@pytest.fixture(autouse=True)
def hopper() -> None:
    if torch.cuda.get_device_capability(0) != (9, 0):
        pytest.skip("the kernel is for compute capability 9.0")


class Step:
    """What a layer's attention reads; entries beyond the prompts' are no numbers."""

    def __init__(self, shape: Architecture, chunks: list[tuple[int, int]]) -> None:
        torch.manual_seed(len(chunks))
        bf16: dict[str, Any] = {"dtype": torch.bfloat16, "device": "cuda"}
        room = max(-(-(start + tokens) // BLOCK_SIZE) for start, tokens in chunks) + 1
        pages = len(chunks) * room, shape.kv_heads, BLOCK_SIZE, shape.head_dim
        self.keys, self.values = torch.randn(pages, **bf16), torch.randn(pages, **bf16)
        self.tables = torch.randperm(pages[0]).int().view(len(chunks), room).cuda()
        for table, (start, tokens) in zip(self.tables.tolist(), chunks, strict=True):
            for block in range(room):
                known = max(start + tokens - block * BLOCK_SIZE, 0)
                self.keys[table[block], :, known:] = torch.nan
                self.values[table[block], :, known:] = torch.nan
        ends = [sum(tokens for _, tokens in chunks[:i]) for i in range(len(chunks) + 1)]
        self.ends = torch.tensor(ends, device="cuda").int()
        self.starts = torch.tensor([start for start, _ in chunks], device="cuda").int()
        self.queries = torch.randn(ends[-1] + 9, shape.heads * shape.head_dim, **bf16)

    def attend(self, kernel: Any, out: Any, **options: Any) -> None:
        pages = self.keys, self.values
        kernel(self.queries, *pages, self.starts, self.ends, self.tables, out, **options)


def same(found: Any, expected: Any) -> bool:
    """Also that nothing is written where both hold what they held."""
    return float((found.float() - expected.float()).norm() / expected.float().norm()) < BFLOAT16


@pytest.mark.parametrize("tiling", TILINGS, ids=str)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("model", MODELS)
def test_it_attends_as_plain_pytorch_does(model: str, step: str, tiling: PageTiling) -> None:
    shape = ARCHITECTURES[model]
    assert PageAttention.fits(shape)
    given = Step(shape, STEPS[step])
    expected, found = (torch.full_like(given.queries, -3.0) for _ in range(2))
    given.attend(ReferenceKernels().prefill_attention, expected)
    given.attend(PageAttention(shape, tiling), found, chain=UNCHAINED)
    assert same(found, expected)
    assert torch.equal(found[-9:], expected[-9:])


def test_in_a_graph_it_reads_what_is_there_when_it_is_replayed() -> None:
    shape = ARCHITECTURES["llama-3-8b"]
    given = Step(shape, STEPS["prompts of all lengths"])
    kernel, found = PageAttention(shape), torch.zeros_like(given.queries)
    torch.cuda.synchronize()  # another stream does not wait for what was made here
    with torch.cuda.stream(torch.cuda.Stream()):
        given.attend(kernel, found, chain=UNCHAINED)
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(capture_error_mode="thread_local")
        given.attend(kernel, found, chain=UNCHAINED)
        graph.capture_end()
        for _ in range(3):
            given.queries.normal_()
            given.values.mul_(-2)
            expected = torch.zeros_like(found)
            given.attend(ReferenceKernels().prefill_attention, expected)
            graph.replay()
            torch.cuda.synchronize()
            assert same(found, expected)
