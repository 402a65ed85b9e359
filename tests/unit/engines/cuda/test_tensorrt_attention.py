"""The launches of TensorRT's attention plugin compute attention, in Triton's interpreter.

What they launch is also compiled, for the architectures that plans are built for.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from blink_persistent.engines.tensorrt.attention_launches import (
    AttentionShape,
    Buffers,
    attention_launches,
    workspace_bytes,
)
from blink_persistent.engines.tensorrt.kernel_archive import CompiledKernel
from blink_server.testing.memory_checkpoint import tiny_architecture

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from blink_persistent.engines.cuda.kernels.reference import ReferenceKernels
from blink_persistent.engines.tensorrt.attention_kernels import attention_shape, wanted_kernels

Kinds = dict[str, Callable[[Any], Any]]
ARCHITECTURE = tiny_architecture(heads=6, kv_heads=2, head_dim=24)
BLOCK_SIZE, MAX_BLOCKS, BLOCKS = 16, 64, 300
SHAPE: AttentionShape = attention_shape(ARCHITECTURE, BLOCK_SIZE, (8, 9))


class Memory:
    """Tensors by addresses of their own."""

    def __init__(self) -> None:
        self._tensors: list[tuple[int, Any]] = []

    def place(self, tensor: Any) -> int:
        address = (1 + len(self._tensors)) << 32
        self._tensors.append((address, tensor))
        return address

    def at(self, address: int) -> Any:
        """What begins there, flat."""
        base, tensor = next(item for item in self._tensors if item[0] >> 32 == address >> 32)
        return tensor.view(-1)[(address - base) // tensor.element_size() :]


class Attended:
    """One layer's attention over memory that is filled at random."""

    def __init__(self, starts: list[int], tokens: list[int], packed: int) -> None:
        torch.manual_seed(11)
        heads, kv_heads, head_dim = (6, 2, 24)
        count = len(starts)
        self.queries = torch.randn(packed, heads, head_dim)
        self.keys, self.values = (torch.randn(packed, kv_heads, head_dim) for _ in range(2))
        self.pools = [torch.randn(BLOCKS, kv_heads, BLOCK_SIZE, head_dim) for _ in range(2)]
        blocks = torch.randperm(BLOCKS - 1)[: count * MAX_BLOCKS] + 1
        self.tables = blocks.view(count, MAX_BLOCKS).int()
        self.starts = torch.tensor(starts).int()
        self.lengths = torch.tensor(
            [start + own if own else 0 for start, own in zip(starts, tokens, strict=True)]
        ).int()
        ends = [sum(tokens[:i]) for i in range(count + 1)]
        self.cu_seqlens = torch.tensor(ends).int()
        self.out = torch.full_like(self.queries, torch.nan)

    def run(self, processors: int) -> list[str]:
        """Launch; the names of the kernels."""
        known = {
            CompiledKernel(role, variant, 1, 0, kernel.fn.__name__, b""): (kernel, constants)
            for role, variant, kernel, constants, _ in wanted_kernels(ARCHITECTURE, BLOCK_SIZE)
        }
        kernels, memory = list(known), Memory()
        count = len(self.starts)
        floats = workspace_bytes(SHAPE, kernels, count) // 4
        names = ("queries", "keys", "values", "tables", "lengths", "starts", "cu_seqlens", "out")
        places = {name: memory.place(getattr(self, name)) for name in names}
        buffers = Buffers(
            **places,
            key_pool=memory.place(self.pools[0]),
            value_pool=memory.place(self.pools[1]),
            workspace=memory.place(torch.full((floats,), torch.nan)),
        )
        launches = attention_launches(
            SHAPE,
            kernels,
            buffers,
            tokens=len(self.queries),
            sequences=count,
            max_blocks=MAX_BLOCKS,
            processors=processors,
        )
        for launch in launches:
            kernel, constants = known[launch.kernel]
            arguments = [
                memory.at(int(value)) if value >= 1 << 32 else value
                for value, _ in launch.arguments[:-2]  # Triton gives the last two itself
            ]
            kernel[launch.grid](*arguments, **constants, CHAINED=False)
        return [launch.kernel.name for launch in launches]

    def append_plainly(self) -> None:
        """New keys and values to their entries, by the plain rule."""
        for i, start in enumerate(self.starts.tolist()):
            first, end = self.cu_seqlens[i : i + 2].tolist()
            for offset in range((end - first) if self.lengths[i] else 0):
                block = self.tables[i, (start + offset) // BLOCK_SIZE]
                for pool, new in zip(self.pools, (self.keys, self.values), strict=True):
                    pool[block, :, (start + offset) % BLOCK_SIZE] = new[first + offset]


@pytest.fixture(autouse=True)
def _interpreted(kernel_kinds: Kinds) -> None:
    if "fused" not in kernel_kinds:
        pytest.skip("Triton's interpreter is not used here")


@pytest.mark.parametrize(("processors", "kernels"), [(1, 2), (40, 3)])
def test_rows_attend_to_their_entries(processors: int, kernels: int) -> None:
    """In one program a row and head, and in several that are combined; an inactive row is zero."""
    made = [Attended([900, 0, 37], [1, 1, 1], 3) for _ in range(2)]
    for each in made:
        each.lengths[1] = 0
    found, expected = made
    assert len(found.run(processors)) == kernels
    expected.append_plainly()
    keys, values = expected.pools
    ReferenceKernels().decode_attention(
        expected.queries.flatten(1),
        keys,
        values,
        expected.lengths,
        expected.tables,
        expected.out.flatten(1),
    )
    torch.testing.assert_close(found.pools, expected.pools, rtol=0, atol=0)
    torch.testing.assert_close(found.out, expected.out, rtol=2e-5, atol=2e-5)


def test_packed_prompts_attend_causally_from_their_starts_on() -> None:
    found, expected = (Attended([30, 0, 5], [20, 0, 13], 40) for _ in range(2))
    assert found.run(8) == ["append_prefill", "attend_tile"]
    expected.append_plainly()
    keys, values = expected.pools
    ReferenceKernels().prefill_attention(
        expected.queries.flatten(1),
        keys,
        values,
        expected.starts,
        expected.cu_seqlens,
        expected.tables,
        expected.out.flatten(1),
    )
    torch.testing.assert_close(found.pools, expected.pools, rtol=0, atol=0)
    torch.testing.assert_close(found.out[:33], expected.out[:33], rtol=2e-5, atol=2e-5)


COMPILE = """
from blink_persistent.engines.tensorrt.attention_kernels import compile_attention
from blink_server.testing.memory_checkpoint import tiny_architecture
shape = tiny_architecture(heads=8, kv_heads=2, head_dim=128)
for capability, room in (((8, 0), 163), ((8, 9), 99), ((9, 0), 227), ((12, 0), 99)):
    kernels = compile_attention(shape, 64, capability)
    assert max(kernel.shared_bytes for kernel in kernels) <= room << 10, capability
    assert all(kernel.cubin.startswith(b"\\x7fELF") for kernel in kernels)
    print(capability, len(kernels), sum(len(kernel.cubin) for kernel in kernels))
"""


@pytest.mark.slow
def test_every_kernel_compiles_for_the_gpus_of_plans() -> None:
    """In a process of its own, where Triton compiles instead of interpreting."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", COMPILE]
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 4
