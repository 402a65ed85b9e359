"""Which position and KV entry each token of a step has."""

from __future__ import annotations

import triton
import triton.language as tl

from blink_persistent.engines.cuda.kernels.in_triton.chain import join_chain


@triton.jit(do_not_specialize=["rows", "max_blocks"])
def locate_decode(
    starts,
    lengths,
    tables,
    positions,
    entries,
    rows,
    max_blocks,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    CHAINED: tl.constexpr,
):
    join_chain(CHAINED)
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = row < rows
    active = inside & (tl.load(lengths + row, mask=inside, other=0) > 0)
    at = tl.load(starts + row, mask=active, other=0)
    block = tl.load(tables + row * max_blocks + at // BLOCK_SIZE, mask=active, other=0)
    entry = tl.where(active, block * BLOCK_SIZE + at % BLOCK_SIZE, -1)
    tl.store(positions + row, at, mask=inside)
    tl.store(entries + row, entry, mask=inside)


@triton.jit(do_not_specialize=["tokens", "sequences", "max_blocks"])
def locate_prefill(
    starts,
    cu_seqlens,
    tables,
    positions,
    entries,
    last,
    tokens,
    sequences,
    max_blocks,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    CHAINED: tl.constexpr,
):
    join_chain(CHAINED)
    token = tl.program_id(0) * TILE + tl.arange(0, TILE)
    sequence = tl.full([TILE], -1, tl.int32)
    at = tl.zeros([TILE], tl.int32)
    for i in range(sequences):
        first = tl.load(cu_seqlens + i)
        end = tl.load(cu_seqlens + i + 1)
        own = (token >= first) & (token < end)
        sequence = tl.where(own, i, sequence)
        at = tl.where(own, tl.load(starts + i) + token - first, at)
        tl.store(last + i, tl.maximum(end - 1, 0), mask=tl.program_id(0) == 0)
    inside = token < tokens
    active = inside & (sequence >= 0)
    block = tl.load(tables + sequence * max_blocks + at // BLOCK_SIZE, mask=active, other=0)
    entry = tl.where(active, block * BLOCK_SIZE + at % BLOCK_SIZE, -1)
    tl.store(positions + token, at, mask=inside)
    tl.store(entries + token, entry, mask=inside)
