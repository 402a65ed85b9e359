"""Which experts serve which tokens: the choice, and its pairs of token and expert by expert.

Pair `token * CHOSEN + j` is a token and the j-th of its experts.
"""

from __future__ import annotations

import triton
import triton.language as tl

from blink_persistent.engines.cuda.kernels.in_triton.chain import (
    await_previous,
    join_chain,
    let_next_in,
)


@triton.jit
def choose_experts(
    scores,
    entries,
    chosen,
    shares,
    EXPERTS: tl.constexpr,
    EXPERT_TILE: tl.constexpr,
    CHOSEN: tl.constexpr,
    CHOSEN_TILE: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """One program a token. Of equal scores the first expert's counts more.

    Whatever the scores are, and be they no numbers, what is chosen is an expert, or -1.
    """
    join_chain(CHAINED)
    token = tl.program_id(0).to(tl.int64)
    e = tl.arange(0, EXPERT_TILE)
    j = tl.arange(0, CHOSEN_TILE)
    entry = tl.load(entries + token)
    left = tl.load(scores + token * EXPERTS + e, mask=e < EXPERTS, other=-float("inf"))
    best = tl.max(left, axis=0)
    experts = tl.full([CHOSEN_TILE], -1, tl.int32)
    weights = tl.zeros([CHOSEN_TILE], tl.float32)
    for i in tl.static_range(CHOSEN):
        score, expert = tl.max(left, axis=0, return_indices=True)
        experts = tl.where(j == i, tl.minimum(expert, EXPERTS - 1), experts)
        weights = tl.where(j == i, tl.exp(score - best), weights)
        left = tl.where(e == expert, -float("inf"), left)
    experts = tl.where(entry >= 0, experts, -1)
    place = token * CHOSEN + j
    tl.store(chosen + place, experts, mask=j < CHOSEN)
    tl.store(shares + place, weights / tl.sum(weights, axis=0), mask=j < CHOSEN)


@triton.jit(do_not_specialize=["pairs", "blocks"])
def sort_pairs(
    chosen,
    order,
    block_experts,
    pairs,
    blocks,
    ROW_TILE: tl.constexpr,
    EXPERT_TILE: tl.constexpr,
    TILE: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """Pairs in blocks of ROW_TILE, each of one expert, in the pairs' order.

    One program an expert. `order` [blocks * ROW_TILE] gets the pairs, -1 where a block is not
    full; `block_experts` [blocks] the experts, -1 for blocks that are not needed, whose `order`
    stays as it is. Pairs of no expert are in no block.
    """
    join_chain(CHAINED)
    expert = tl.program_id(0)
    e = tl.arange(0, EXPERT_TILE)
    i = tl.arange(0, TILE)
    counts = tl.zeros([EXPERT_TILE], tl.int32)
    for at in range(0, pairs, TILE):
        found = tl.load(chosen + at + i, mask=at + i < pairs, other=-1)
        counts += tl.histogram(found, EXPERT_TILE, mask=found >= 0)
    needed = (counts + ROW_TILE - 1) // ROW_TILE
    first = tl.sum(tl.where(e < expert, needed, 0), axis=0)
    own = tl.sum(tl.where(e == expert, needed, 0), axis=0)

    place = first * ROW_TILE
    for at in range(0, pairs, TILE):
        mine = tl.load(chosen + at + i, mask=at + i < pairs, other=-1) == expert
        rank = tl.cumsum(mine.to(tl.int32), axis=0) - 1
        tl.store(order + place + rank, at + i, mask=mine)
        place += tl.sum(mine.to(tl.int32), axis=0)
    rest = place + tl.arange(0, ROW_TILE)
    tl.store(order + rest, tl.full([ROW_TILE], -1, tl.int32), mask=rest < (first + own) * ROW_TILE)
    for at in range(0, own, TILE):
        tl.store(block_experts + first + at + i, expert + i * 0, mask=at + i < own)
    if expert == 0:
        for at in range(tl.sum(needed, axis=0), blocks, TILE):
            none = tl.full([TILE], -1, tl.int32)
            tl.store(block_experts + at + i, none, mask=at + i < blocks)


@triton.jit
def norm_scores(
    delta,
    gain,
    residual,
    added,
    out,
    router,
    scores,
    epsilon,
    PARTS: tl.constexpr,
    SIZE: tl.constexpr,
    TILE: tl.constexpr,
    EXPERTS: tl.constexpr,
    SCORED: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """As `add_norm` of one row, and `scores` [EXPERTS] of the normed row with `router`.

    A program has SCORED experts, and computes the norm for itself; so what all read, `residual`,
    is left as it is, and `added` [SIZE] becomes the sum of `delta`.
    """
    let_next_in(CHAINED)
    column = tl.arange(0, TILE)
    inside = column < SIZE
    expert = tl.program_id(0) * SCORED + tl.arange(0, SCORED)
    places = router + expert[:, None] * SIZE + column[None, :]
    weights = tl.load(places, mask=(expert < EXPERTS)[:, None] & inside[None, :], other=0.0)
    gains = tl.load(gain + column, mask=inside, other=0.0).to(tl.float32)
    await_previous(CHAINED)
    before = tl.load(residual + column, mask=inside, other=0.0)
    total = tl.zeros([TILE], tl.float32)
    for part in tl.static_range(PARTS):
        total += tl.load(delta + part * SIZE + column, mask=inside, other=0.0).to(tl.float32)
    x = before + total
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / SIZE + epsilon)
    normed = (x * scale * gains).to(out.dtype.element_ty)
    found = tl.sum(weights.to(tl.float32) * normed.to(tl.float32)[None, :], axis=1)
    tl.store(scores + expert, found, mask=expert < EXPERTS)
    first = inside & (tl.program_id(0) == 0)
    tl.store(added + column, total, mask=first)
    tl.store(out + column, normed, mask=first)
