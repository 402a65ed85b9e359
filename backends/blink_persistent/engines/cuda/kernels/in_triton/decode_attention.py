"""Attention of one query a row over paged KV, split along the entries (flash-decoding).

The grid (rows, kv_heads, splits) is fixed by the key; each program reads its row's length and
takes its share of the tiles. All query heads of a group share the tiles that are loaded.
"""

from __future__ import annotations

import triton
import triton.language as tl

from blink_persistent.engines.cuda.kernels.in_triton.chain import (
    await_previous,
    join_chain,
    let_next_in,
)


@triton.jit(do_not_specialize=["max_blocks"])
def attend_split(
    queries,
    keys,
    values,
    lengths,
    tables,
    partial,
    log_sums,
    out,
    max_blocks,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SPLITS: tl.constexpr,
    GROUP_TILE: tl.constexpr,
    DIM_TILE: tl.constexpr,
    TILE: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """`scale` is that of the scores times log2(e); `log_sums` are to base 2.

    A single split writes `out` itself; zeros for an inactive row.
    """
    let_next_in(CHAINED)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    g = tl.arange(0, GROUP_TILE)
    d = tl.arange(0, DIM_TILE)
    n = tl.arange(0, TILE)
    in_group = g < GROUP
    in_dim = d < HEAD_DIM
    both = in_group[:, None] & in_dim[None, :]
    head = row * HEADS + kv_head * GROUP + g

    length = tl.load(lengths + row)
    share = tl.cdiv(tl.cdiv(length, TILE), SPLITS) * TILE
    begin = split * share
    end = tl.minimum(begin + share, length)
    table = tables + row * max_blocks
    await_previous(CHAINED)
    row_place = head[:, None] * HEAD_DIM + d[None, :]
    if begin >= end:
        if SPLITS == 1:
            zeros = tl.zeros([GROUP_TILE, DIM_TILE], out.dtype.element_ty)
            tl.store(out + row_place, zeros, mask=both)
        else:
            tl.store(log_sums + head * SPLITS + split, float("-inf"), mask=in_group)
        return

    q = tl.load(queries + row_place, mask=both, other=0.0)
    best = tl.full([GROUP_TILE], float("-inf"), tl.float32)
    total = tl.zeros([GROUP_TILE], tl.float32)
    mixed = tl.zeros([GROUP_TILE, DIM_TILE], tl.float32)
    for at in range(begin, end, TILE):
        block = tl.load(table + at // BLOCK_SIZE).to(tl.int64)
        first = (block * KV_HEADS + kv_head) * BLOCK_SIZE + at % BLOCK_SIZE
        place = (first + n)[:, None] * HEAD_DIM + d[None, :]
        known = (at + n < end)[:, None] & in_dim[None, :]
        k = tl.load(keys + place, mask=known, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        scores = tl.where((at + n < end)[None, :], scores, float("-inf"))
        now = tl.maximum(best, tl.max(scores, axis=1))
        weight = tl.exp2(scores - now[:, None])
        fade = tl.exp2(best - now)
        v = tl.load(values + place, mask=known, other=0.0)
        total = total * fade + tl.sum(weight, axis=1)
        mixed = mixed * fade[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
        best = now
    mixed = mixed / total[:, None]
    if SPLITS == 1:
        tl.store(out + row_place, mixed.to(out.dtype.element_ty), mask=both)
    else:
        place = partial + (head * SPLITS + split)[:, None] * HEAD_DIM + d[None, :]
        tl.store(place, mixed, mask=both)
        tl.store(log_sums + head * SPLITS + split, best + tl.log2(total), mask=in_group)


@triton.jit
def combine_splits(
    partial,
    log_sums,
    out,
    HEAD_DIM: tl.constexpr,
    SPLITS: tl.constexpr,
    SPLIT_TILE: tl.constexpr,
    DIM_TILE: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """One program a row and head. A head without any entry (an inactive row's) becomes zero."""
    join_chain(CHAINED)
    head = tl.program_id(0).to(tl.int64)
    s = tl.arange(0, SPLIT_TILE)
    d = tl.arange(0, DIM_TILE)
    place = partial + (head * SPLITS + s)[:, None] * HEAD_DIM + d[None, :]
    parts = tl.load(place, mask=(s < SPLITS)[:, None] & (d < HEAD_DIM)[None, :], other=0.0)
    log_sum = tl.load(log_sums + head * SPLITS + s, mask=s < SPLITS, other=float("-inf"))
    best = tl.max(log_sum, axis=0)
    # A split without entries has written no part: whatever lies there counts for nothing. One whose
    # sum is NaN counts, so that the head becomes NaN too.
    some = log_sum != float("-inf")
    weight = tl.where(some, tl.exp2(log_sum - best), 0.0)
    parts = tl.where(some[:, None], parts * weight[:, None], 0.0)
    mixed = tl.sum(parts, axis=0)
    total = tl.sum(weight, axis=0)
    value = tl.where(total == 0.0, 0.0, mixed / total)
    tl.store(out + head * HEAD_DIM + d, value.to(out.dtype.element_ty), mask=d < HEAD_DIM)
