"""Causal attention of packed prompts over paged KV, each from its start position on.

The grid (tiles, heads) is fixed by the key: as many tiles of queries as its tokens and sequences
can need at most. Each program finds in `cu_seqlens` which tile of which sequence is its own.
"""

from __future__ import annotations

import triton
import triton.language as tl

from blink_persistent.engines.cuda.kernels.in_triton.chain import join_chain


@triton.jit
def take_in(
    q,
    keys,
    values,
    table,
    kv_head,
    at,
    seen,
    end,
    scale,
    best,
    total,
    mixed,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    DIM_TILE: tl.constexpr,
    TILE: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Entries [at, at + TILE) into a running softmax: its maxima, sums and weighted values.

    `seen`: the last entry that each query sees. Unless MASKED all queries see all of the tile.
    """
    n = tl.arange(0, TILE)
    d = tl.arange(0, DIM_TILE)
    block = tl.load(table + at // BLOCK_SIZE).to(tl.int64)
    page = (block * KV_HEADS + kv_head) * BLOCK_SIZE + at % BLOCK_SIZE
    place = (page + n)[:, None] * HEAD_DIM + d[None, :]
    if MASKED or HEAD_DIM < DIM_TILE:
        known = (at + n < end)[:, None] & (d < HEAD_DIM)[None, :]
        k = tl.load(keys + place, mask=known, other=0.0)
        v = tl.load(values + place, mask=known, other=0.0)
    else:
        k = tl.load(keys + place)
        v = tl.load(values + place)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    if MASKED:
        scores = tl.where((at + n)[None, :] <= seen[:, None], scores, float("-inf"))
    now = tl.maximum(best, tl.max(scores, axis=1))
    weight = tl.exp2(scores - now[:, None])
    fade = tl.exp2(best - now)
    total = total * fade + tl.sum(weight, axis=1)
    mixed = mixed * fade[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
    return now, total, mixed


@triton.jit(do_not_specialize=["sequences", "max_blocks"])
def attend_tile(
    queries,
    keys,
    values,
    starts,
    cu_seqlens,
    tables,
    out,
    sequences,
    max_blocks,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    QUERY_TILE: tl.constexpr,
    DIM_TILE: tl.constexpr,
    TILE: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """`scale` is that of the scores times log2(e)."""
    join_chain(CHAINED)
    tile = tl.num_programs(0) - 1 - tl.program_id(0)  # a prompt's last tiles take longest
    head = tl.program_id(1)
    kv_head = head // (HEADS // KV_HEADS)
    sequence = -1
    begin = 0  # of this tile's queries in its sequence
    before = 0  # tiles of earlier sequences
    for i in range(sequences):
        count = tl.cdiv(tl.load(cu_seqlens + i + 1) - tl.load(cu_seqlens + i), QUERY_TILE)
        own = (tile >= before) & (tile < before + count)
        sequence = tl.where(own, i, sequence)
        begin = tl.where(own, (tile - before) * QUERY_TILE, begin)
        before += count
    if sequence < 0:
        return

    first = tl.load(cu_seqlens + sequence)
    tokens = tl.load(cu_seqlens + sequence + 1) - first
    start = tl.load(starts + sequence)
    m = begin + tl.arange(0, QUERY_TILE)
    d = tl.arange(0, DIM_TILE)
    both = (m < tokens)[:, None] & (d < HEAD_DIM)[None, :]
    place = ((first + m).to(tl.int64) * HEADS + head)[:, None] * HEAD_DIM + d[None, :]
    q = tl.load(queries + place, mask=both, other=0.0)
    best = tl.full([QUERY_TILE], float("-inf"), tl.float32)
    total = tl.zeros([QUERY_TILE], tl.float32)
    mixed = tl.zeros([QUERY_TILE, DIM_TILE], tl.float32)
    table = tables + sequence * max_blocks
    seen = start + m
    end = start + tl.minimum(begin + QUERY_TILE, tokens)
    seen_by_all = (start + begin + 1) // TILE * TILE
    for at in range(0, seen_by_all, TILE):
        best, total, mixed = take_in(
            q, keys, values, table, kv_head, at, seen, end, scale, best, total, mixed,
            KV_HEADS, HEAD_DIM, BLOCK_SIZE, DIM_TILE, TILE, MASKED=False,
        )  # fmt: skip
    for at in range(seen_by_all, end, TILE):
        best, total, mixed = take_in(
            q, keys, values, table, kv_head, at, seen, end, scale, best, total, mixed,
            KV_HEADS, HEAD_DIM, BLOCK_SIZE, DIM_TILE, TILE, MASKED=True,
        )  # fmt: skip
    mixed = mixed / total[:, None]
    tl.store(out + place, mixed.to(out.dtype.element_ty), mask=both)
