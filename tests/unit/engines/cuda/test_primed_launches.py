"""What kernels in CUDA C++ are launched with: the parameters are run lane by lane on this host."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")
driver = pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")

from blink_persistent.engines.cuda.kernels.fused import FusedKernels
from blink_persistent.engines.cuda.kernels.primed import PrimedProducts, primed_on
from blink_persistent.engines.cuda.kernels.primed_attention import PrimedAttention
from blink_persistent.engines.cuda.kernels.primed_attention_cut import AttentionCall, AttentionCut
from blink_persistent.engines.cuda.kernels.primed_cut import PrimedCut, PrimedKernel
from blink_persistent.engines.cuda.kernels.protocol import Heads, Projected, Rotary
from blink_persistent.engines.cuda.kernels.reference import ReferenceKernels
from blink_persistent.testing.primed_host import HostAttention, HostProducts
from blink_server.testing.memory_checkpoint import tiny_architecture

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

SHAPE = tiny_architecture(heads=6, kv_heads=2, head_dim=64, qk_norm=True, attention_bias=True)
BLOCK_SIZE, MAX_BLOCKS, CONTEXT = 32, 8, 256


class HostGpu:
    """Loads nothing, and runs what is launched."""

    def __init__(self, run: Callable[[str, Any, int], None]) -> None:
        self.driver, self._run = driver, run
        self.loaded: list[str] = []

    def load(self, source: str, structs: Any, *, prologue: str) -> Any:
        self.loaded.append(source)
        return SimpleNamespace(function=lambda name: name)

    def call(self, name: str, *arguments: Any) -> None:
        if name == "cuLaunchKernelEx":
            config, function, places, _ = arguments
            self._run(function, config, places)

    def enqueue(self, function: Any, stream: Any, launch: Callable[[], object]) -> None:
        launch()


@pytest.fixture(autouse=True)
def stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))


def test_a_product_gets_its_sizes_in_order() -> None:
    cut = PrimedCut(blocks=3, splits=2, warps=2, windows=2, stages=3)
    host = HostProducts([PrimedKernel.of(cut, 8)])

    def run(function: str, config: Any, places: int) -> None:
        at = (ctypes.c_void_p * 8).from_address(places)
        x, weight, out = (ctypes.c_uint64.from_address(place).value for place in at[:3])
        numbers = [ctypes.c_uint32.from_address(place).value for place in at[3:]]
        rows, size, depth, share, blocks = numbers
        assert (function, share, blocks) == (PrimedKernel.of(cut, 8).name, depth // 2, 3)
        assert (config.gridDimX, config.blockDimX, config.numAttrs) == (6, 64, 1)
        assert config.sharedMemBytes == cut.shared_bytes(8)
        host.run(cut, 8, (rows, size, depth), (x, weight, out))

    gpu: Any = HostGpu(run)
    products = primed_on(gpu)({((72, 256), 8): cut})
    assert isinstance(products, PrimedProducts)
    x, weight = torch.randn(5, 256).bfloat16(), torch.randn(72, 256).bfloat16()
    out = torch.full((2, 5, 72), torch.nan)
    products(x, weight, out, cut, 8, chained=True)
    torch.testing.assert_close(out.sum(dim=0), x.float() @ weight.float().t(), atol=1e-4, rtol=1e-4)
    assert gpu.loaded == ["primed_product_gpu.cu"]
    assert primed_on(gpu)({}) is None


def projected(rows: int) -> Projected:
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
    entries = torch.zeros(rows, dtype=torch.int32)
    return Projected(
        qkv=torch.randn(2, rows, width),
        heads=heads,
        rotary=Rotary(angle.cos(), angle.sin()),
        positions=entries.clone(),
        entries=entries,
        queries=torch.full((rows, SHAPE.heads * size), torch.nan).bfloat16(),
    )


@pytest.mark.parametrize("lengths", [(70,), (200, 0, 33, 1)])
def test_attention_in_a_decode_step_is_that_of_plain_pytorch(lengths: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    rows, cut = len(lengths), AttentionCut(warps=2, stages=2, programs=4)
    host = HostAttention([cut], SHAPE.head_dim)
    pages = rows * MAX_BLOCKS
    launched = []

    def run(function: str, config: Any, places: int) -> None:
        (place,) = (ctypes.c_void_p * 1).from_address(places)
        call = AttentionCall.from_address(place)
        assert function == cut.kernel_name(SHAPE.head_dim)
        assert config.gridDimX == rows * SHAPE.kv_heads * call.splits
        assert config.sharedMemBytes == cut.shared_bytes(SHAPE.head_dim)
        launched.append(call.splits)
        host.run(cut, call, pages)

    gpu: Any = HostGpu(run)
    attention = PrimedAttention(gpu, SHAPE, max_rows=8, processors=3, device="cpu", always=cut)
    kernels = FusedKernels(
        SHAPE,
        max_rows=8,
        capacity=MAX_BLOCKS * BLOCK_SIZE,
        processors=3,
        chained=False,
        device="cpu",
        primed_attention=attention,
    )
    new, tables = projected(rows), torch.randperm(pages).int().view(rows, MAX_BLOCKS)
    lengths_given = torch.tensor(lengths, dtype=torch.int32)
    for row, length in enumerate(lengths):
        at = max(length - 1, 0)
        block = tables[row, at // BLOCK_SIZE]
        new.positions[row] = at
        new.entries[row] = block * BLOCK_SIZE + at % BLOCK_SIZE if length else -1
    cache = torch.randn(2, pages, SHAPE.kv_heads, BLOCK_SIZE, SHAPE.head_dim).bfloat16()
    found = []
    for each in (ReferenceKernels(), kernels):
        keys, values = cache.clone()
        out = torch.full_like(new.queries, torch.nan)
        each.attend_new(new, keys, values, lengths_given, tables, out)
        found.append((out, keys, values))
    for expected, other in zip(*found, strict=True):
        torch.testing.assert_close(other, expected, atol=0.03, rtol=0.02)
    assert launched == [6 if rows == 1 else 1]


def test_what_the_library_projected_is_attended_to_by_the_other_kernels() -> None:
    gpu: Any = HostGpu(lambda *_: pytest.fail("launched"))
    attention = PrimedAttention(gpu, SHAPE, max_rows=8, processors=3, device="cpu")
    new = projected(3)
    assert attention.takes(new)
    assert not attention.takes(projected(65))
    rounded = new.qkv[:1].bfloat16()
    library = Projected(rounded, new.heads, new.rotary, new.positions, new.entries, new.queries)
    assert not attention.takes(library)
