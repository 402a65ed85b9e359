"""Products of a few rows with a large matrix: the time is that of reading the matrix once.

The grid (tiles of output features, splits of the inner dimension) is fixed by the key. Weights
come in tiles, several on their way at once.
"""

from __future__ import annotations

import triton
import triton.language as tl

from blink_persistent.engines.cuda.kernels.in_triton.chain import join_chain


@triton.jit(do_not_specialize=["rows", "features"])
def stream_product(
    x,
    weight,
    out,
    rows,
    size,
    depth,
    share,
    features,
    ROW_TILE: tl.constexpr,
    TILE: tl.constexpr,
    STEP: tl.constexpr,
    GATED: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """out[split, row, n] = sum over the split's k of x[row, k] * weight[n, k].

    `share` is `depth` / splits, a multiple of STEP; `size` a multiple of `features`, those of
    a program; TILE is the power of two that holds them. GATED: `weight` is
    [2 * size, depth], the gate's rows first, and silu(gate) * up is written.
    """
    join_chain(CHAINED)
    tile = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    n = tl.arange(0, TILE)
    k = tl.arange(0, STEP)
    r = tl.arange(0, ROW_TILE)
    begin = split * share
    weights = weight + tile * features * depth
    ups = weights + size.to(tl.int64) * depth
    place = n[:, None] * depth + (begin + k)[None, :]
    rows_place = r[:, None] * depth + (begin + k)[None, :]
    known = (r < rows)[:, None]
    used = (n < features)[:, None]
    total = tl.zeros([TILE, ROW_TILE], tl.float32)
    up_total = tl.zeros([TILE, ROW_TILE], tl.float32)
    for at in range(0, share, STEP):
        w = tl.load(weights + place + at, mask=used, other=0.0)
        values = tl.trans(tl.load(x + rows_place + at, mask=known, other=0.0))
        total = tl.dot(w, values, total, input_precision="ieee")
        if GATED:
            up = tl.load(ups + place + at, mask=used, other=0.0)
            up_total = tl.dot(up, values, up_total, input_precision="ieee")
    if GATED:
        total = total * tl.sigmoid(total) * up_total
    target = out + split.to(tl.int64) * rows * size + tile * features
    target += n[:, None] + r[None, :] * size
    tl.store(target, total.to(out.dtype.element_ty), mask=used & (r < rows)[None, :])
