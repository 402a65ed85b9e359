"""Each Triton kernel gives what plain PyTorch beside it gives, and compiles for the GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blink_server.testing.memory_checkpoint import tiny_architecture

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from blink_persistent.engines.cuda.kernels.fused import DecodeTiling, FusedKernels
from blink_persistent.engines.cuda.kernels.protocol import Heads, Rotary

HERE = Path(__file__).resolve().parent
BLOCK_SIZE, MAX_BLOCKS, BLOCKS = 16, 32, 100
ARCHITECTURE = tiny_architecture(heads=6, kv_heads=2, head_dim=24)

Pair = tuple[Any, Any]
Kinds = dict[str, Callable[[Any], Any]]


@pytest.fixture
def pair(kernel_kinds: Kinds) -> Pair:
    """Reference and fused kernels."""
    if "fused" not in kernel_kinds:
        pytest.skip("Triton's interpreter is not used here")
    return kernel_kinds["reference"](ARCHITECTURE), kernel_kinds["fused"](ARCHITECTURE)


def both(pair: Pair, operation: str, make: Callable[[], tuple[Any, ...]], written: int) -> None:
    """Run both on equal arguments; the last `written` of them must come out equal."""
    results = []
    for kernels in pair:
        torch.manual_seed(7)
        arguments = make()
        getattr(kernels, operation)(*arguments)
        results.append(arguments[-written:])
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-5)


def int32(*values: int) -> Any:
    return torch.tensor(values, dtype=torch.int32)


def tables(count: int) -> Any:
    return torch.randperm(BLOCKS - 1)[: count * MAX_BLOCKS].view(count, -1).int() + 1


def pages() -> Any:
    return torch.randn(BLOCKS, ARCHITECTURE.kv_heads, BLOCK_SIZE, ARCHITECTURE.head_dim)


def query_rows(count: int) -> Any:
    return torch.randn(count, ARCHITECTURE.heads * ARCHITECTURE.head_dim)


def test_decode_attention_in_several_splits(pair: Pair) -> None:
    capacity = BLOCK_SIZE * MAX_BLOCKS
    tiling = DecodeTiling(programs=3)
    assert tiling.splits(3, ARCHITECTURE.kv_heads, capacity, 3) == 1
    assert tiling.splits(1, ARCHITECTURE.kv_heads, capacity, 3) == 4

    def make(length: int) -> tuple[Any, ...]:
        poisoned = torch.full_like(query_rows(1), torch.nan)
        return query_rows(1), pages(), pages(), int32(length), tables(1), poisoned

    for length in (0, 1, 16, 17, 130, 512):
        both(pair, "decode_attention", lambda length=length: make(length), 1)


def test_decode_attention_of_rows_of_all_lengths(pair: Pair) -> None:
    def make() -> tuple[Any, ...]:
        poisoned = torch.full_like(query_rows(3), torch.nan)
        return query_rows(3), pages(), pages(), int32(400, 0, 33), tables(3), poisoned

    both(pair, "decode_attention", make, 1)


def test_prefill_attention_of_packed_prompts(pair: Pair) -> None:
    def make() -> tuple[Any, ...]:
        starts, ends = int32(0, 37, 0, 5), int32(0, 30, 47, 47, 48)
        out = torch.full_like(query_rows(64), -3.0)
        return query_rows(64), pages(), pages(), starts, ends, tables(3)[[0, 1, 2, 2]], out

    both(pair, "prefill_attention", make, 1)


def test_rotation_with_norms_of_heads_and_append(pair: Pair) -> None:
    size = ARCHITECTURE.head_dim

    def make() -> tuple[Any, ...]:
        norms = {"q_norm": torch.rand(size), "k_norm": torch.rand(size)}
        heads = Heads(
            ARCHITECTURE.heads,
            ARCHITECTURE.kv_heads,
            size,
            **norms,
            epsilon=ARCHITECTURE.rms_norm_eps,
        )
        rotary = Rotary(torch.randn(40, size // 2), torch.randn(40, size // 2))
        width = (ARCHITECTURE.heads + 2 * ARCHITECTURE.kv_heads) * size
        places = int32(39, 0, 12), int32(5, -1, BLOCKS * BLOCK_SIZE - 1)
        written = pages(), pages(), torch.full_like(query_rows(3), torch.nan)
        return torch.randn(3, width), heads, rotary, *places, *written

    both(pair, "rotate_append", make, 3)


@pytest.mark.parametrize("size", [1, 96, 130])
def test_rows_of_any_size(pair: Pair, size: int) -> None:
    def embed() -> tuple[Any, ...]:
        out = torch.full((3, size), torch.nan)
        ids, table, gain = int32(4, 0, 4), torch.randn(5, size), torch.rand(size)
        return ids, table, gain, 1e-5, out.clone(), out

    def add() -> tuple[Any, ...]:
        out = torch.full((3, size), torch.nan)
        return torch.randn(3, size), torch.rand(size), 1e-5, torch.randn(3, size), out

    def gate() -> tuple[Any, ...]:
        return 4 * torch.randn(3, 2 * size), torch.full((3, size), torch.nan)

    both(pair, "embed_norm", embed, 2)
    both(pair, "add_norm", add, 2)
    both(pair, "swiglu", gate, 1)


def test_tokens_are_located(pair: Pair) -> None:
    def written(tokens: int) -> tuple[Any, Any]:
        return torch.full((tokens,), -7).int(), torch.full((tokens,), -7).int()

    def decode() -> tuple[Any, ...]:
        return int32(0, 9, 200), int32(1, 0, 201), tables(3), BLOCK_SIZE, *written(3)

    def prefill() -> tuple[Any, ...]:
        last = torch.full((3,), -7).int()
        ends = int32(0, 0, 20, 30)
        return int32(3, 100, 0), ends, tables(3), BLOCK_SIZE, *written(40), last

    both(pair, "locate_decode", decode, 2)
    both(pair, "locate_prefill", prefill, 3)


@pytest.mark.parametrize(("rows", "kv_heads"), [(1, 8), (16, 8), (64, 3), (1000, 8)])
def test_splits_fill_the_processors_and_no_more(rows: int, kv_heads: int) -> None:
    splits = DecodeTiling(programs=3).splits(rows, kv_heads, 1 << 20, 131)
    assert splits == 1 or rows * kv_heads * splits <= 3 * 131
    assert splits == 64 or rows * kv_heads * (splits + 1) > 3 * 131


def test_scratch_holds_every_number_of_rows() -> None:
    kernels = FusedKernels(
        ARCHITECTURE, max_rows=9, capacity=4096, processors=5, chained=False, device="cpu"
    )
    for rows in range(1, 10):
        splits = DecodeTiling().splits(rows, ARCHITECTURE.kv_heads, 4096, 5)
        assert kernels.scratch_heads >= rows * splits * ARCHITECTURE.heads


def test_every_kernel_compiles_for_the_gpu() -> None:
    """In a process of its own, since here the kernels are those of the interpreter."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, str(HERE / "compile_kernels.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("compiled") == 17
