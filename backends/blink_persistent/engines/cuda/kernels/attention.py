"""Attention over paged KV: launches with grids that follow from the key alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import triton
from torch import Tensor

from blink_persistent.engines.cuda.kernels.cuts.choices import (
    DEFAULT_TILING,
    DOT_LEAST,
    PREFILL_TILE,
    ROW_TILES,
    DecodeTiling,
    PageTiling,
    PrefillTiling,
    Tilings,
    prefill_tiling,
    row_tile,
)
from blink_persistent.engines.cuda.kernels.in_triton import decode_attention, prefill_attention
from blink_persistent.engines.cuda.kernels.page_attention import PageAttention
from blink_server.importers.checkpoint import Architecture


class Attention:
    """Fulfils the attention of `Kernels` for one model's shapes. Steps share its scratch memory."""

    def __init__(
        self,
        architecture: Architecture,
        *,
        max_rows: int,
        capacity: int,
        processors: int,
        chain: Callable[[int], dict[str, bool]],
        device: Any,
        tilings: Tilings,
        always: DecodeTiling | None,
        prefill: PrefillTiling | PageTiling | None = None,
        by_pages: bool = False,
    ) -> None:
        """As `FusedKernels`; `always` is taken instead of what `tilings` says, `prefill` instead
        of what `prefill_tiling` says, or of `PageTiling()`.

        `by_pages`: prefill as `PageAttention` does, where it can, as with such a tiling.
        `chain`: options of the launches of a step of so many tokens.
        """
        self._shape, self._processors = architecture, processors
        self._tilings, self._always = tilings, always
        self._always_prefill = prefill if isinstance(prefill, PrefillTiling) else None
        self._chain = chain
        pages = prefill if isinstance(prefill, PageTiling) else None
        self._by_pages = (
            PageAttention(architecture, pages)
            if (by_pages or pages) and PageAttention.fits(architecture)
            else None
        )
        most = max(
            rows * self._tiling(rows).splits(rows, architecture.kv_heads, capacity, processors)
            for rows in range(1, max_rows + 1)
        )
        self.scratch_heads = most * architecture.heads
        floats = {"dtype": torch.float32, "device": device}
        self._partial = torch.zeros(self.scratch_heads * architecture.head_dim, **floats)
        self._log_sums = torch.zeros(self.scratch_heads, **floats)
        self._scale = architecture.head_dim**-0.5 * math.log2(math.e)

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
        tiling = self._tiling(rows)
        splits = tiling.splits(rows, shape.kv_heads, max_blocks * block_size, self._processors)
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
            TILE=min(block_size, tiling.tile),
            num_warps=tiling.warps,
            num_stages=tiling.stages,
            **self._chain(rows),
        )
        if splits == 1:
            return
        split_tile = triton.next_power_of_2(splits)
        decode_attention.combine_splits[(rows * shape.heads,)](
            self._partial,
            self._log_sums,
            out,
            HEAD_DIM=shape.head_dim,
            SPLITS=splits,
            SPLIT_TILE=split_tile,
            DIM_TILE=dim_tile,
            num_warps=max(1, min(split_tile * dim_tile // 256, 8)),
            **self._chain(rows),
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
        if self._by_pages is not None and self._by_pages.takes(keys):
            tensors = queries, keys, values, start_positions, cu_seqlens, block_tables, out
            return self._by_pages(*tensors, self._chain(tokens))
        shape, block_size = self._shape, keys.shape[2]
        tiling = self._always_prefill or prefill_tiling(tokens, shape.heads, self._processors)
        query_tile = min(max(triton.next_power_of_2(tokens), DOT_LEAST), tiling.queries)
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
            num_warps=tiling.warps if query_tile == tiling.queries else 4,
            num_stages=tiling.stages,
            **self._chain(tokens),
        )

    def _tiling(self, rows: int) -> DecodeTiling:
        if self._always is not None:
            return self._always
        shape = self._shape
        heads = shape.heads, shape.kv_heads, shape.head_dim
        return self._tilings.get((heads, row_tile(rows) or ROW_TILES[-1]), DEFAULT_TILING)
