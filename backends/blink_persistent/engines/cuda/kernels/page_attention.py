"""Launches prefill attention for Hopper GPUs, whose kernel Triton has from 3.6 on."""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
from torch import Tensor

from blink_persistent.engines.cuda.kernels.cuts.choices import PageTiling
from blink_server.importers.checkpoint import Architecture

ROWS = 64  # queries of one head each, that a program computes
BLOCK_SIZE = 64  # entries of a page; others have not been tried
MOST_ELEMENTS = 128  # of a head: more do not fit the registers
SWIZZLED_BYTES, ELEMENT_BITS = 128, 16
TRITON = (3, 6)  # the first whose Gluon has what the kernel is written in
OPTIONS = {"num_warps": 4, "maxnreg": 128}  # so that a processor's registers hold two programs


class PageAttention:
    """Prefill attention for one model's shapes, where `fits`."""

    def __init__(self, architecture: Architecture, tiling: PageTiling | None = None) -> None:
        """`tiling`: `PageTiling()` by default."""
        from blink_persistent.engines.cuda.kernels.in_triton import hopper_prefill

        self._kernel = hopper_prefill.attend_pages
        self._shape, self._tiling = architecture, tiling or PageTiling()

    @staticmethod
    def fits(architecture: Architecture) -> bool:
        """Can the kernel compute such heads, and is Triton new enough for it?"""
        size, group = architecture.head_dim, architecture.heads // architecture.kv_heads
        version = tuple(int(part) for part in triton.__version__.split(".")[:2])
        return size % 8 == 0 and size <= MOST_ELEMENTS and group <= ROWS and version >= TRITON

    def takes(self, keys: Tensor) -> bool:
        return (keys.shape[2], keys.dtype) == (BLOCK_SIZE, torch.bfloat16)

    def __call__(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        start_positions: Tensor,
        cu_seqlens: Tensor,
        block_tables: Tensor,
        out: Tensor,
        chain: dict[str, bool],
    ) -> None:
        shape, (sequences, max_blocks), tokens = self._shape, block_tables.shape, len(queries)
        group = shape.heads // shape.kv_heads
        tiles = triton.cdiv(tokens, ROWS // group) + sequences - 1
        self._kernel[(shape.kv_heads, tiles)](
            queries,
            pages(keys),
            pages(values),
            start_positions,
            cu_seqlens,
            block_tables,
            out,
            sequences,
            max_blocks,
            shape.head_dim**-0.5 * math.log2(math.e),
            **constants_of(shape, self._tiling),
            **OPTIONS,
            **chain,
        )


def constants_of(shape: Architecture, tiling: PageTiling) -> dict[str, int]:
    return {
        "HEADS": shape.heads,
        "KV_HEADS": shape.kv_heads,
        "HEAD_DIM": shape.head_dim,
        "BLOCK_SIZE": BLOCK_SIZE,
        "DIM_TILE": triton.next_power_of_2(shape.head_dim),
        "STAGES": tiling.stages,
    }


def pages(entries: Tensor) -> Any:
    """One head's entries of one block at a time, of [blocks, KV heads, block size, elements]."""
    from triton.experimental.gluon.language import NVMMASharedLayout
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    size = entries.shape[3]
    tile = triton.next_power_of_2(size)
    layout = NVMMASharedLayout(min(SWIZZLED_BYTES, 2 * tile), ELEMENT_BITS)
    return TensorDescriptor.from_tensor(entries.view(-1, size), [BLOCK_SIZE, tile], layout)
