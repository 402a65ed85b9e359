"""Heads' norms, rotation, and the append to the paged KV, in one pass over the projected rows.

One program handles one token and one group: its queries, their key and their value.
"""

from __future__ import annotations

import triton
import triton.language as tl

from blink_persistent.engines.cuda.kernels.in_triton.chain import join_chain


@triton.jit
def turned_pair(first, second, cos, sin):
    """Half-split rotation: element i turns with element i + head_dim / 2."""
    return first * cos - second * sin, second * cos + first * sin


@triton.jit
def projected(row, bias, place, mask, stride, PARTS: tl.constexpr, BIASED: tl.constexpr):
    """The sum of a projection's parts, `stride` elements apart, and its bias; float32."""
    total = tl.load(row + place, mask=mask, other=0.0).to(tl.float32)
    for part in tl.static_range(1, PARTS):
        total += tl.load(row + part * stride + place, mask=mask, other=0.0).to(tl.float32)
    if BIASED:
        total += tl.load(bias + place, mask=mask, other=0.0).to(tl.float32)
    return total


@triton.jit(do_not_specialize=["rows"])
def rotate_append(
    qkv,
    bias,
    q_norm,
    k_norm,
    cos_table,
    sin_table,
    positions,
    entries,
    keys,
    values,
    queries,
    epsilon,
    rows,
    PARTS: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BIASED: tl.constexpr,
    NORMED: tl.constexpr,
    GROUP_TILE: tl.constexpr,
    HALF_TILE: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """`qkv` is [PARTS, rows, (HEADS + 2 * KV_HEADS) * HEAD_DIM], added part by part.

    The tokens may be some of a part's rows, one after the other: all arrays begin with the first.
    """
    join_chain(CHAINED)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    HALF: tl.constexpr = HEAD_DIM // 2
    WIDTH: tl.constexpr = (HEADS + 2 * KV_HEADS) * HEAD_DIM
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    i = tl.arange(0, HALF_TILE)
    inside = i < HALF
    row = qkv + token * WIDTH
    stride = rows.to(tl.int64) * WIDTH
    g = tl.arange(0, GROUP_TILE)[:, None]
    both = (g < GROUP) & inside[None, :]
    place = (head * GROUP + g) * HEAD_DIM + i[None, :]
    key = (HEADS + head) * HEAD_DIM + i
    value = key + KV_HEADS * HEAD_DIM

    # Everything is loaded before anything is waited for.
    at = tl.load(positions + token)
    entry = tl.load(entries + token)
    first = projected(row, bias, place, both, stride, PARTS, BIASED)
    second = projected(row, bias, place + HALF, both, stride, PARTS, BIASED)
    key_first = projected(row, bias, key, inside, stride, PARTS, BIASED)
    key_second = projected(row, bias, key + HALF, inside, stride, PARTS, BIASED)
    value_first = projected(row, bias, value, inside, stride, PARTS, BIASED)
    value_second = projected(row, bias, value + HALF, inside, stride, PARTS, BIASED)
    cos = tl.load(cos_table + at * HALF + i, mask=inside, other=0.0)
    sin = tl.load(sin_table + at * HALF + i, mask=inside, other=0.0)

    if NORMED:
        square = tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1)
        scale = tl.rsqrt(square / HEAD_DIM + epsilon)[:, None]
        first *= scale * tl.load(q_norm + i, mask=inside, other=0.0).to(tl.float32)[None, :]
        second *= scale * tl.load(q_norm + HALF + i, mask=inside, other=0.0).to(tl.float32)[None, :]
        square = tl.sum(key_first * key_first, axis=0) + tl.sum(key_second * key_second, axis=0)
        scale = tl.rsqrt(square / HEAD_DIM + epsilon)
        key_first *= scale * tl.load(k_norm + i, mask=inside, other=0.0).to(tl.float32)
        key_second *= scale * tl.load(k_norm + HALF + i, mask=inside, other=0.0).to(tl.float32)
    first, second = turned_pair(first, second, cos[None, :], sin[None, :])
    key_first, key_second = turned_pair(key_first, key_second, cos, sin)

    out = queries + token * HEADS * HEAD_DIM + place
    tl.store(out, first.to(queries.dtype.element_ty), mask=both)
    tl.store(out + HALF, second.to(queries.dtype.element_ty), mask=both)
    known = inside & (entry >= 0)
    page = (entry // BLOCK_SIZE).to(tl.int64) * KV_HEADS + head
    target = (page * BLOCK_SIZE + entry % BLOCK_SIZE) * HEAD_DIM + i
    tl.store(keys + target, key_first.to(keys.dtype.element_ty), mask=known)
    tl.store(keys + target + HALF, key_second.to(keys.dtype.element_ty), mask=known)
    tl.store(values + target, value_first.to(values.dtype.element_ty), mask=known)
    tl.store(values + target + HALF, value_second.to(values.dtype.element_ty), mask=known)
