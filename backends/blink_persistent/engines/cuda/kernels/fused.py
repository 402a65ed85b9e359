"""The operations as Triton kernels, each launched with a grid that follows from the key alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from blink_persistent.engines.cuda.kernels import (
    decode_attention,
    located,
    norm,
    prefill_attention,
    rotary,
    swiglu,
)
from blink_persistent.engines.cuda.kernels.protocol import Heads, Rotary
from blink_server.importers.checkpoint import Architecture

LEAST_SPLIT = 128  # entries; a shorter share is not worth a program
MOST_SPLITS = 64
PREFILL_TILE = 64
QUERY_TILE = 128
LOCATE_TILE = 256
SWIGLU_TILE = 1024
DOT_LEAST = 16  # the smallest side of a tile that the matrix units take


@dataclass(frozen=True, slots=True)
class DecodeTiling:
    """How decode attention is cut: entries a tile, and programs that a processor holds at once.

    `stages` is Triton's: five keep block table, keys and values of two tiles under way.
    """

    tile: int = 32
    programs: int = 5
    warps: int = 4
    stages: int = 5

    def splits(self, rows: int, kv_heads: int, capacity: int, processors: int) -> int:
        """Programs along a row's entries, so that all rows together fill the processors."""
        wanted = self.programs * processors // (rows * kv_heads)
        return max(1, min(wanted, capacity // LEAST_SPLIT, MOST_SPLITS))


class FusedKernels:
    """Fulfils `Kernels` for one model's shapes.

    `processors` are the multiprocessors that the engine may fill: one fewer than the device has,
    since the scheduler resides on it. Steps must not overlap, as they share scratch memory.
    """

    def __init__(
        self,
        architecture: Architecture,
        *,
        max_rows: int,
        capacity: int,
        processors: int,
        chained: bool,
        device: Any,
        decode: DecodeTiling = DecodeTiling(),
    ) -> None:
        """For up to `max_rows` rows with block tables of `capacity` entries.

        `chained`: launch each kernel while the one before it ends, which needs a Hopper GPU.
        """
        self._shape, self._processors, self._decode = architecture, processors, decode
        self._chain = {"CHAINED": chained, "launch_pdl": chained}
        heads, kv_heads = architecture.heads, architecture.kv_heads
        most = max(
            rows * decode.splits(rows, kv_heads, capacity, processors)
            for rows in range(1, max_rows + 1)
        )
        self.scratch_heads = most * heads
        floats = {"dtype": torch.float32, "device": device}
        self._partial = torch.zeros(self.scratch_heads * architecture.head_dim, **floats)
        self._log_sums = torch.zeros(self.scratch_heads, **floats)
        self._scale = architecture.head_dim**-0.5 * math.log2(math.e)

    def locate_decode(
        self,
        start_positions: Tensor,
        lengths: Tensor,
        block_tables: Tensor,
        block_size: int,
        positions: Tensor,
        entries: Tensor,
    ) -> None:
        rows, max_blocks = block_tables.shape
        located.locate_decode[(triton.cdiv(rows, LOCATE_TILE),)](
            start_positions, lengths, block_tables, positions, entries, rows, max_blocks,
            BLOCK_SIZE=block_size, TILE=LOCATE_TILE, **self._chain,
        )  # fmt: skip

    def locate_prefill(
        self,
        start_positions: Tensor,
        cu_seqlens: Tensor,
        block_tables: Tensor,
        block_size: int,
        positions: Tensor,
        entries: Tensor,
        last: Tensor,
    ) -> None:
        tokens, (sequences, max_blocks) = len(positions), block_tables.shape
        located.locate_prefill[(triton.cdiv(tokens, LOCATE_TILE),)](
            start_positions, cu_seqlens, block_tables, positions, entries, last,
            tokens, sequences, max_blocks, BLOCK_SIZE=block_size, TILE=LOCATE_TILE, **self._chain,
        )  # fmt: skip

    def embed_norm(
        self,
        token_ids: Tensor,
        table: Tensor,
        gain: Tensor,
        epsilon: float,
        residual: Tensor,
        out: Tensor,
    ) -> None:
        tokens, size = residual.shape
        norm.embed_norm[(tokens,)](
            token_ids, table, gain, residual, out, epsilon,
            SIZE=size, TILE=triton.next_power_of_2(size), num_warps=8, **self._chain,
        )  # fmt: skip

    def add_norm(
        self, delta: Tensor, gain: Tensor, epsilon: float, residual: Tensor, out: Tensor
    ) -> None:
        tokens, size = residual.shape
        norm.add_norm[(tokens,)](
            delta, gain, residual, out, epsilon,
            SIZE=size, TILE=triton.next_power_of_2(size), num_warps=8, **self._chain,
        )  # fmt: skip

    def rotate_append(
        self,
        qkv: Tensor,
        heads: Heads,
        rotary_tables: Rotary,
        positions: Tensor,
        entries: Tensor,
        keys: Tensor,
        values: Tensor,
        queries: Tensor,
    ) -> None:
        normed = heads.q_norm is not None
        rotary.rotate_append[(len(qkv), heads.kv_heads)](
            qkv,
            heads.q_norm if normed else qkv,
            heads.k_norm if normed else qkv,
            rotary_tables.cos,
            rotary_tables.sin,
            positions,
            entries,
            keys,
            values,
            queries,
            heads.epsilon,
            HEADS=heads.heads,
            KV_HEADS=heads.kv_heads,
            HEAD_DIM=heads.head_dim,
            BLOCK_SIZE=keys.shape[2],
            NORMED=normed,
            GROUP_TILE=triton.next_power_of_2(heads.heads // heads.kv_heads),
            HALF_TILE=triton.next_power_of_2(heads.head_dim // 2),
            num_warps=2,
            **self._chain,
        )

    def decode_attention(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        lengths: Tensor,
        block_tables: Tensor,
        out: Tensor,
    ) -> None:
        (rows, max_blocks), block_size = block_tables.shape, keys.shape[2]
        shape = self._shape
        splits = self._decode.splits(
            rows, shape.kv_heads, max_blocks * block_size, self._processors
        )
        dim_tile = triton.next_power_of_2(shape.head_dim)
        decode_attention.attend_split[(rows, shape.kv_heads, splits)](
            queries,
            keys,
            values,
            lengths,
            block_tables,
            self._partial,
            self._log_sums,
            out,
            max_blocks,
            self._scale,
            HEADS=shape.heads,
            KV_HEADS=shape.kv_heads,
            HEAD_DIM=shape.head_dim,
            BLOCK_SIZE=block_size,
            SPLITS=splits,
            GROUP_TILE=max(triton.next_power_of_2(shape.heads // shape.kv_heads), DOT_LEAST),
            DIM_TILE=dim_tile,
            TILE=min(block_size, self._decode.tile),
            num_warps=self._decode.warps,
            num_stages=self._decode.stages,
            **self._chain,
        )
        if splits == 1:
            return
        decode_attention.combine_splits[(rows * shape.heads,)](
            self._partial,
            self._log_sums,
            out,
            HEAD_DIM=shape.head_dim,
            SPLITS=splits,
            SPLIT_TILE=triton.next_power_of_2(splits),
            DIM_TILE=dim_tile,
            num_warps=2,
            **self._chain,
        )

    def prefill_attention(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        start_positions: Tensor,
        cu_seqlens: Tensor,
        block_tables: Tensor,
        out: Tensor,
    ) -> None:
        (sequences, max_blocks), tokens = block_tables.shape, len(queries)
        shape, block_size = self._shape, keys.shape[2]
        query_tile = min(max(triton.next_power_of_2(tokens), DOT_LEAST), QUERY_TILE)
        tiles = triton.cdiv(tokens, query_tile) + sequences - 1
        prefill_attention.attend_tile[(tiles, shape.heads)](
            queries,
            keys,
            values,
            start_positions,
            cu_seqlens,
            block_tables,
            out,
            sequences,
            max_blocks,
            self._scale,
            HEADS=shape.heads,
            KV_HEADS=shape.kv_heads,
            HEAD_DIM=shape.head_dim,
            BLOCK_SIZE=block_size,
            QUERY_TILE=query_tile,
            DIM_TILE=triton.next_power_of_2(shape.head_dim),
            TILE=min(block_size, PREFILL_TILE),
            num_warps=8 if query_tile == QUERY_TILE else 4,
            num_stages=2,
            **self._chain,
        )

    def swiglu(self, gate_up: Tensor, out: Tensor) -> None:
        tokens, size = out.shape
        tile = min(SWIGLU_TILE, triton.next_power_of_2(size))
        swiglu.swiglu[(tokens, triton.cdiv(size, tile))](
            gate_up, out, SIZE=size, TILE=tile, **self._chain
        )  # fmt: skip
