"""The gated activation between an MLP's two products."""

from __future__ import annotations

import triton
import triton.language as tl

from blink_persistent.engines.cuda.kernels.in_triton.chain import join_chain


@triton.jit
def swiglu(
    gate_up,
    out,
    SIZE: tl.constexpr,
    TILE: tl.constexpr,
    CHAINED: tl.constexpr,
):
    join_chain(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = column < SIZE
    gate = tl.load(gate_up + row * 2 * SIZE + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * SIZE + SIZE + column, mask=inside, other=0.0).to(tl.float32)
    value = gate * tl.sigmoid(gate) * up
    tl.store(out + row * SIZE + column, value.to(out.dtype.element_ty), mask=inside)
