"""An engine's tables and step buffers in device memory, for a graph grid and its limits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from blink_persistent import _native
from blink_persistent.gpu.driver import Gpu
from blink_persistent.gpu.structs import EngineTables, PhaseBuffers
from blink_persistent.graph_grid import GraphGrid, decode_lookup, prefill_lookup

SAMPLING_ROW_BYTES = 112  # asserted in provisioned.h


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Limits that a grid does not tell. Lengths are tokens; block 0 is the null block."""

    context_length: int
    vocabulary_size: int
    block_size: int
    block_count: int
    eos_token_ids: tuple[int, ...]
    rows_movable: bool = True
    token_granularity: int = 16
    deterministic: bool = False

    @property
    def max_blocks(self) -> int:
        """Blocks of the longest request."""
        return -(-self.context_length // self.block_size)


def allocate_engine(gpu: Gpu, grid: GraphGrid, limits: EngineLimits) -> EngineTables:
    """Allocates and fills what the scheduler and an engine's graphs share; `gpu` owns it."""
    keys = np.array([(k.phase, k.sequences, k.tokens) for k in grid.keys], np.uint32)
    eos = np.array(limits.eos_token_ids, np.int32)
    decode = _allocate_phase(gpu, grid.max_rows, grid.max_rows, limits.max_blocks)
    prefill = _allocate_phase(gpu, grid.max_sequences, grid.max_prefill_tokens, limits.max_blocks)
    return EngineTables(
        buffers=(decode, prefill),
        graphs=gpu.place(keys),
        decode_lookup=gpu.place(decode_lookup(grid)),
        prefill_lookup=gpu.place(prefill_lookup(grid, limits.token_granularity)),
        eos_token_ids=gpu.place(eos) if len(eos) else 0,
        graph_count=len(keys),
        eos_count=len(eos),
        max_rows=grid.max_rows,
        max_sequences=grid.max_sequences,
        max_prefill_tokens=grid.max_prefill_tokens,
        token_granularity=limits.token_granularity,
        context_length=limits.context_length,
        vocabulary_size=limits.vocabulary_size,
        block_size=limits.block_size,
        block_count=limits.block_count,
        max_blocks=limits.max_blocks,
        rows_movable=limits.rows_movable,
        deterministic=limits.deterministic,
    )


def _allocate_phase(gpu: Gpu, sequences: int, tokens: int, max_blocks: int) -> PhaseBuffers:
    """Zeroed, but for rows and cu_seqlens, which begin as 0, 1, 2, ..."""
    top = sequences * _native.MAX_TOP_LOGPROBS
    counting = np.arange(sequences + 1, dtype=np.int32)
    return PhaseBuffers(
        token_ids=gpu.allocate(4 * tokens),
        start_positions=gpu.allocate(4 * sequences),
        lengths=gpu.allocate(4 * sequences),
        rows=gpu.place(counting[:-1]),
        cu_seqlens=gpu.place(counting),
        block_tables=gpu.allocate(4 * sequences * max_blocks),
        sampling=gpu.allocate(SAMPLING_ROW_BYTES * sequences),
        output_tokens=gpu.allocate(4 * sequences),
        output_logprobs=gpu.allocate(4 * sequences),
        output_top_ids=gpu.allocate(4 * top),
        output_top_logprobs=gpu.allocate(4 * top),
        completion=gpu.allocate(4),
        error=gpu.allocate(4),
    )
