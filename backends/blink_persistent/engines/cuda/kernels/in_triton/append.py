"""The append of rotated keys and values to the paged KV, for steps whose rotation is elsewhere.

One program handles one token and one KV head. A token's place follows from lengths and tables on
the device; an inactive row, and a token of no sequence, writes nothing.
"""

from __future__ import annotations

import triton
import triton.language as tl

from blink_persistent.engines.cuda.kernels.in_triton.chain import join_chain


@triton.jit
def copy_entry(
    new_keys,
    new_values,
    table,
    at,
    keys,
    values,
    active,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    DIM_TILE: tl.constexpr,
):
    """This program's head of a token to entry `at` of a request with that block table."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    d = tl.arange(0, DIM_TILE)
    known = active & (d < HEAD_DIM)
    block = tl.load(table + at // BLOCK_SIZE, mask=active, other=0).to(tl.int64)
    place = ((block * KV_HEADS + head) * BLOCK_SIZE + at % BLOCK_SIZE) * HEAD_DIM + d
    source = (token * KV_HEADS + head) * HEAD_DIM + d
    tl.store(keys + place, tl.load(new_keys + source, mask=known, other=0.0), mask=known)
    tl.store(values + place, tl.load(new_values + source, mask=known, other=0.0), mask=known)


@triton.jit(do_not_specialize=["max_blocks"])
def append_decode(
    new_keys,
    new_values,
    starts,
    lengths,
    tables,
    keys,
    values,
    max_blocks,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    DIM_TILE: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """One token a row: `new_keys`, `new_values` [rows, KV_HEADS, HEAD_DIM]."""
    join_chain(CHAINED)
    row = tl.program_id(0)
    active = tl.load(lengths + row) > 0
    at = tl.load(starts + row)
    table = tables + row * max_blocks
    copy_entry(
        new_keys, new_values, table, at, keys, values, active,
        KV_HEADS, HEAD_DIM, BLOCK_SIZE, DIM_TILE,
    )  # fmt: skip


@triton.jit(do_not_specialize=["sequences", "max_blocks"])
def append_prefill(
    new_keys,
    new_values,
    starts,
    cu_seqlens,
    tables,
    keys,
    values,
    sequences,
    max_blocks,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    DIM_TILE: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """Packed tokens of several prompts: `new_keys`, `new_values` [tokens, KV_HEADS, HEAD_DIM]."""
    join_chain(CHAINED)
    token = tl.program_id(0)
    sequence = -1
    at = 0
    for i in range(sequences):
        first = tl.load(cu_seqlens + i)
        own = (token >= first) & (token < tl.load(cu_seqlens + i + 1))
        sequence = tl.where(own, i, sequence)
        at = tl.where(own, tl.load(starts + i) + token - first, at)
    table = tables + tl.maximum(sequence, 0) * max_blocks
    copy_entry(
        new_keys, new_values, table, at, keys, values, sequence >= 0,
        KV_HEADS, HEAD_DIM, BLOCK_SIZE, DIM_TILE,
    )  # fmt: skip
