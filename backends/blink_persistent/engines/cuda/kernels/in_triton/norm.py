"""RMS norm fused with what comes before it: the embedding, or the sum with the residual stream."""

from __future__ import annotations

import triton
import triton.language as tl

from blink_persistent.engines.cuda.kernels.in_triton.chain import await_previous, let_next_in


@triton.jit
def store_normed(x, column, inside, gains, out, SIZE: tl.constexpr, epsilon):
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / SIZE + epsilon)
    tl.store(out + column, (x * scale * gains).to(out.dtype.element_ty), mask=inside)


@triton.jit
def embed_norm(
    token_ids,
    table,
    gain,
    residual,
    out,
    epsilon,
    SIZE: tl.constexpr,
    TILE: tl.constexpr,
    CHAINED: tl.constexpr,
):
    let_next_in(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, TILE)
    inside = column < SIZE
    gains = tl.load(gain + column, mask=inside, other=0.0).to(tl.float32)
    await_previous(CHAINED)
    token = tl.load(token_ids + row).to(tl.int64)
    x = tl.load(table + token * SIZE + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(residual + row * SIZE + column, x, mask=inside)
    store_normed(x, column, inside, gains, out + row * SIZE, SIZE, epsilon)


@triton.jit(do_not_specialize=["rows"])
def add_norm(
    delta,
    gain,
    residual,
    out,
    epsilon,
    rows,
    PARTS: tl.constexpr,
    SIZE: tl.constexpr,
    TILE: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """`delta` is [PARTS, rows, SIZE], added part by part."""
    let_next_in(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, TILE)
    inside = column < SIZE
    gains = tl.load(gain + column, mask=inside, other=0.0).to(tl.float32)
    await_previous(CHAINED)
    x = tl.load(residual + row * SIZE + column, mask=inside, other=0.0)
    for part in tl.static_range(PARTS):
        place = delta + (part * rows + row) * SIZE + column
        x += tl.load(place, mask=inside, other=0.0).to(tl.float32)
    tl.store(residual + row * SIZE + column, x, mask=inside)
    store_normed(x, column, inside, gains, out + row * SIZE, SIZE, epsilon)
