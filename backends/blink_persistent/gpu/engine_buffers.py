"""An engine's tables and step buffers in device memory, for a graph grid and its limits."""

from __future__ import annotations

import ctypes
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from blink_persistent import _native
from blink_persistent.gpu.driver import Gpu
from blink_persistent.gpu.structs import EngineTables, PhaseBuffers, SamplingRow
from blink_persistent.graph_grid import GraphGrid
from blink_persistent.graph_lookup import decode_lookup, mixed_lookup, prefill_lookup

ALIGNMENT = 256  # of each array, as that of memory allocated for it alone


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Limits that a grid does not tell. Lengths are tokens; block 0 is the null block.

    A `prefill_chunk` of 0 is as long as the largest prefill step.
    """

    context_length: int
    vocabulary_size: int
    block_size: int
    block_count: int
    eos_token_ids: tuple[int, ...]
    rows_movable: bool = True
    token_granularity: int = 16
    deterministic: bool = False
    prefill_chunk: int = 0

    @property
    def max_blocks(self) -> int:
        """Blocks of the longest request."""
        return -(-self.context_length // self.block_size)


def allocate_engine(
    gpu: Gpu, grid: GraphGrid, limits: EngineLimits, available: Collection[int] | None = None
) -> EngineTables:
    """Allocates and fills what the scheduler and an engine's graphs share; `gpu` owns it.

    The lookup tables name the `available` graphs, all if not given.
    """
    keys = np.array([(k.phase, k.sequences, k.tokens, k.rows) for k in grid.keys], np.uint32)
    granularity = limits.token_granularity
    mixed = mixed_lookup(grid, granularity, available)
    eos = np.array(limits.eos_token_ids, np.int32)
    decode = _allocate_phase(gpu, grid.max_rows, grid.max_rows, limits.max_blocks)
    prefill = _allocate_phase(gpu, grid.max_sequences, grid.max_prefill_tokens, limits.max_blocks)
    return EngineTables(
        buffers=(decode, prefill),
        graphs=gpu.place(keys),
        decode_lookup=gpu.place(decode_lookup(grid, available)),
        prefill_lookup=gpu.place(prefill_lookup(grid, granularity, available)),
        mixed_lookup=gpu.place(mixed) if mixed.size else 0,
        eos_token_ids=gpu.place(eos) if len(eos) else 0,
        graph_count=len(keys),
        eos_count=len(eos),
        max_rows=grid.max_rows,
        max_sequences=grid.max_sequences,
        max_prefill_tokens=grid.max_prefill_tokens,
        token_granularity=granularity,
        prefill_chunk=limits.prefill_chunk or grid.max_prefill_tokens,
        mixed_sequences=grid.mixed_sequences,
        max_mixed_tokens=grid.max_mixed_tokens,
        context_length=limits.context_length,
        vocabulary_size=limits.vocabulary_size,
        block_size=limits.block_size,
        block_count=limits.block_count,
        max_blocks=limits.max_blocks,
        rows_movable=limits.rows_movable,
        deterministic=limits.deterministic,
    )


def make_available(
    gpu: Gpu, grid: GraphGrid, tables: EngineTables, available: Collection[int]
) -> None:
    """Have the lookup tables name these graphs, also while a scheduler reads them.

    The scheduler must know the executables already. Raises CudaError, ValueError.
    """
    gpu.put(tables.decode_lookup, decode_lookup(grid, available))
    gpu.put(tables.prefill_lookup, prefill_lookup(grid, tables.token_granularity, available))
    if tables.mixed_lookup:
        gpu.put(tables.mixed_lookup, mixed_lookup(grid, tables.token_granularity, available))


def input_bytes(sequences: int, tokens: int, max_blocks: int) -> dict[str, int]:
    """Bytes of a phase's inputs, in the order of their places; what a small graph needs least of
    comes last."""
    each = 4 * sequences
    return {
        "sampling": ctypes.sizeof(SamplingRow) * sequences,
        "start_positions": each,
        "lengths": each,
        "rows": each,
        "cu_seqlens": each + 4,
        "token_ids": 4 * tokens,
        "block_tables": each * max_blocks,
    }


def output_bytes(sequences: int) -> dict[str, int]:
    """Bytes of a phase's outputs, in the order of their places; what every step needs is first."""
    each = 4 * sequences
    return {
        "error": 4,
        "output_tokens": each,
        "output_logprobs": each,
        "output_top_ids": each * _native.MAX_TOP_LOGPROBS,
        "output_top_logprobs": each * _native.MAX_TOP_LOGPROBS,
        "completion": 4,
    }


def places_of(sizes: dict[str, int]) -> tuple[dict[str, int], int]:
    """(offset of each, bytes together) where arrays of these sizes follow one another."""
    offsets, used = {}, 0
    for name, size in sizes.items():
        offsets[name] = used
        used += -(-size // ALIGNMENT) * ALIGNMENT
    return offsets, used


def _allocate_phase(gpu: Gpu, sequences: int, tokens: int, max_blocks: int) -> PhaseBuffers:
    """Inputs in one allocation, outputs in another, so that a host can copy them as a whole.

    Zeroed, but for rows and cu_seqlens, which begin as 0, 1, 2, ...
    """
    addresses: dict[str, int] = {}
    for sizes in (input_bytes(sequences, tokens, max_blocks), output_bytes(sequences)):
        offsets, used = places_of(sizes)
        base = gpu.allocate(used)
        addresses |= {name: base + offset for name, offset in offsets.items()}
    counting = np.arange(sequences + 1, dtype=np.int32)
    gpu.put(addresses["rows"], counting[:-1])
    gpu.put(addresses["cu_seqlens"], counting)
    return PhaseBuffers(**addresses)
