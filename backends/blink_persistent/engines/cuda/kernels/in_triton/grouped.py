"""Products of tokens with the experts that serve them, each with its own matrix.

The grid (tiles of output features, blocks of pairs) is fixed by the key; blocks that the routing
does not need end at once, so only matrices of experts that serve a token are read.
"""

from __future__ import annotations

import triton
import triton.language as tl

from blink_persistent.engines.cuda.kernels.in_triton.chain import join_chain


@triton.jit(do_not_specialize=["tokens"])
def grouped_product(
    x,
    weight,
    out,
    shares,
    order,
    block_experts,
    size,
    depth,
    tokens,
    CHOSEN: tl.constexpr,
    ROW_TILE: tl.constexpr,
    TILE: tl.constexpr,
    STEP: tl.constexpr,
    GATED: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """`order` and `block_experts` are those of `sort_pairs`; `depth` is a multiple of STEP.

    GATED: out[pair] = silu(gate) * up of row `token` of `x`; `weight` is
    [experts, 2 * size, depth], each gate's rows first. Else out[j, token] = the product of row
    `pair` of `x`, times the pair's share; `weight` is [experts, size, depth].
    """
    join_chain(CHAINED)
    block = tl.program_id(1)
    expert = tl.load(block_experts + block).to(tl.int64)
    if expert < 0:
        return
    r = tl.arange(0, ROW_TILE)
    n = tl.program_id(0) * TILE + tl.arange(0, TILE)
    k = tl.arange(0, STEP)
    pair = tl.load(order + block * ROW_TILE + r)
    known = pair >= 0
    pair = tl.where(known, pair, 0)
    token = pair // CHOSEN
    row = pair
    target = (pair % CHOSEN) * tokens + token
    matrix = expert * size * depth
    if GATED:
        row = token
        target = pair
        matrix *= 2
    used = (n < size)[:, None]
    weights = weight + matrix + n[:, None] * depth + k[None, :]
    ups = weights + size.to(tl.int64) * depth
    rows = x + row.to(tl.int64)[:, None] * depth + k[None, :]
    total = tl.zeros([TILE, ROW_TILE], tl.float32)
    up_total = tl.zeros([TILE, ROW_TILE], tl.float32)
    for at in range(0, depth, STEP):
        w = tl.load(weights + at, mask=used, other=0.0)
        values = tl.trans(tl.load(rows + at, mask=known[:, None], other=0.0))
        total = tl.dot(w, values, total, input_precision="ieee")
        if GATED:
            up = tl.load(ups + at, mask=used, other=0.0)
            up_total = tl.dot(up, values, up_total, input_precision="ieee")
    if GATED:
        total = total * tl.sigmoid(total) * up_total
    else:
        total *= tl.load(shares + pair, mask=known, other=0.0)[None, :]
    places = out + target.to(tl.int64)[None, :] * size + n[:, None]
    tl.store(places, total.to(out.dtype.element_ty), mask=used & known[None, :])
