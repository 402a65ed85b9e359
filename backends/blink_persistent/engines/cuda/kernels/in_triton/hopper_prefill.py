"""Prefill attention for Hopper GPUs, in Gluon: one warp asks for pages, four compute.

A program's 64 rows are (query, head of the KV group), so that a page is read once for all heads of
its group. Pages come by TMA into a ring in shared memory. The product of values runs while the
scores of the next page are softened. Grids follow from the key alone, as in `prefill_attention`.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

ROWS = gl.constexpr(64)  # of a program


@gluon.jit
def fetch(keys, values, table, kv_head, tiles, k_ring, v_ring, full_k, full_v, free_k, free_v,
          KV_HEADS: gl.constexpr, BLOCK_SIZE: gl.constexpr, STAGES: gl.constexpr):  # fmt: skip
    """Asks for a sequence's pages in their order, as far ahead as the ring holds."""
    PAGE: gl.constexpr = keys.block_type.nbytes
    block = gl.load(table)
    for i in range(tiles):
        place = i % STAGES
        turn = (i // STAGES) & 1
        row = (block * KV_HEADS + kv_head) * BLOCK_SIZE
        block = gl.load(table + gl.minimum(i + 1, tiles - 1))
        mbarrier.wait(free_k.index(place), turn ^ 1)
        mbarrier.expect(full_k.index(place), PAGE)
        tma.async_copy_global_to_shared(keys, [row, 0], full_k.index(place), k_ring.index(place))
        mbarrier.wait(free_v.index(place), turn ^ 1)
        mbarrier.expect(full_v.index(place), PAGE)
        tma.async_copy_global_to_shared(values, [row, 0], full_v.index(place), v_ring.index(place))


@gluon.jit
def await_page(full, i, STAGES: gl.constexpr):
    mbarrier.wait(full.index(i % STAGES), (i // STAGES) & 1)


@gluon.jit
def hand_back(barrier):
    """Once every warp has read what it guards."""
    gl.thread_barrier()
    mbarrier.arrive(barrier, count=1)


@gluon.jit
def soften(scores, best, total, scale):
    """The best score so far, weights, how much what was summed before fades, and the new sum."""
    now = gl.maximum(best, gl.max(scores, axis=1) * scale)
    weight = gl.exp2(scores * scale - now[:, None])
    fade = gl.exp2(best - now)
    return now, weight, fade, total * fade + gl.sum(weight, axis=1)


@gluon.jit
def compute(queries, out, first, tokens, start, begin, end, tiles, kv_head, scale,
            k_ring, v_ring, full_k, full_v, free_k, free_v,
            HEADS: gl.constexpr, GROUP: gl.constexpr, QUERIES: gl.constexpr,
            HEAD_DIM: gl.constexpr, DIM_TILE: gl.constexpr, TILE: gl.constexpr,
            STAGES: gl.constexpr):  # fmt: skip
    """What the four warps do."""
    scores_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE, 16])
    mixed_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, DIM_TILE, 16])
    q_layout: gl.constexpr = gl.DotOperandLayout(0, scores_layout, 2)
    p_layout: gl.constexpr = gl.DotOperandLayout(0, mixed_layout, 2)
    wide: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    dtype: gl.constexpr = queries.dtype.element_ty

    row = gl.arange(0, ROWS, gl.SliceLayout(1, wide))
    d = gl.arange(0, DIM_TILE, gl.SliceLayout(0, wide))
    m = begin + row // GROUP
    head = kv_head * GROUP + row % GROUP
    both = ((m < tokens) & (row < QUERIES * GROUP))[:, None] & (d < HEAD_DIM)[None, :]
    place = ((first + m).to(gl.int64) * HEADS + head)[:, None] * HEAD_DIM + d[None, :]
    q = gl.convert_layout(gl.load(queries + place, mask=both, other=0.0), q_layout)

    row_of_score = gl.arange(0, ROWS, gl.SliceLayout(1, scores_layout))
    seen = start + begin + row_of_score // GROUP
    n = gl.arange(0, TILE, gl.SliceLayout(0, scores_layout))
    seen_by_all = start + begin + 1  # entries
    none = gl.zeros([ROWS, TILE], gl.float32, scores_layout)
    mixed = gl.zeros([ROWS, DIM_TILE], gl.float32, mixed_layout)
    best = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, scores_layout))
    total = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, scores_layout))

    await_page(full_k, 0, STAGES)
    scores = warpgroup_mma(q, k_ring.index(0).permute((1, 0)), none, use_acc=False)
    hand_back(free_k.index(0))
    if seen_by_all < TILE:
        scores = gl.where(n[None, :] <= seen[:, None], scores, float("-inf"))
    best, weight, fade, total = soften(scores, best, total, scale)
    await_page(full_k, gl.minimum(1, tiles - 1), STAGES)
    for i in range(1, tiles):
        place_k = i % STAGES
        place_v = (i - 1) % STAGES
        token = warpgroup_mma(
            q, k_ring.index(place_k).permute((1, 0)), none, use_acc=False, is_async=True
        )
        mixed = mixed * gl.convert_layout(fade, gl.SliceLayout(1, mixed_layout))[:, None]
        p = gl.convert_layout(weight.to(dtype), p_layout)
        await_page(full_v, i - 1, STAGES)
        mixing = warpgroup_mma(p, v_ring.index(place_v), mixed, is_async=True)
        scores = warpgroup_mma_wait(1, deps=[token])
        hand_back(free_k.index(place_k))
        if (i + 1) * TILE > seen_by_all:
            scores = gl.where((i * TILE + n)[None, :] <= seen[:, None], scores, float("-inf"))
        best, weight, fade, total = soften(scores, best, total, scale)
        # The branch in here keeps the compiler from waiting for `mixing` before it softens.
        await_page(full_k, gl.minimum(i + 1, tiles - 1), STAGES)
        mixed, p = warpgroup_mma_wait(0, deps=[mixing, p])
        hand_back(free_v.index(place_v))
    mixed = mixed * gl.convert_layout(fade, gl.SliceLayout(1, mixed_layout))[:, None]
    p = gl.convert_layout(weight.to(dtype), p_layout)
    last = tiles - 1
    v_tile = v_ring.index(last % STAGES)
    await_page(full_v, last, STAGES)
    if tiles * TILE > end:  # entries of nobody, which may be no numbers
        entry = last * TILE + gl.arange(0, TILE, gl.SliceLayout(1, wide))
        v = v_tile.load(wide)
        v_tile.store(gl.where((entry < end)[:, None], v, gl.zeros_like(v)))
        fence_async_shared()
        gl.thread_barrier()
    mixed = warpgroup_mma(p, v_tile, mixed)
    share = gl.convert_layout(1.0 / total, gl.SliceLayout(1, mixed_layout))
    found = gl.convert_layout((mixed * share[:, None]).to(dtype), wide)
    gl.store(out + place, found, mask=both)


@gluon.jit
def add(a, b):
    return a + b


@gluon.jit(do_not_specialize=["sequences", "max_blocks"])
def attend_pages(queries, keys, values, starts, cu_seqlens, tables, out, sequences, max_blocks,
                 scale, HEADS: gl.constexpr, KV_HEADS: gl.constexpr, HEAD_DIM: gl.constexpr,
                 BLOCK_SIZE: gl.constexpr, DIM_TILE: gl.constexpr, STAGES: gl.constexpr,
                 CHAINED: gl.constexpr):  # fmt: skip
    """`keys` and `values`: descriptors of rows of a layer's pages. `scale`: times log2(e)."""
    if CHAINED:
        gdc_launch_dependents()
        gdc_wait()
    GROUP: gl.constexpr = HEADS // KV_HEADS
    QUERIES: gl.constexpr = ROWS // GROUP
    TILE: gl.constexpr = BLOCK_SIZE
    SEARCH: gl.constexpr = 32
    kv_head = gl.program_id(0)
    tile = gl.num_programs(1) - 1 - gl.program_id(1)  # a prompt's last tiles take longest
    line: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    i = gl.arange(0, SEARCH, line)
    sequence = -1
    begin = 0
    first = 0
    tokens = 0
    start = 0
    before = 0
    for base in range(0, sequences, SEARCH):
        known = base + i < sequences
        firsts = gl.load(cu_seqlens + base + i, mask=known, other=0)
        counts = gl.load(cu_seqlens + base + i + 1, mask=known, other=0) - firsts
        all_starts = gl.load(starts + base + i, mask=known, other=0)
        tiles = (counts + QUERIES - 1) // QUERIES
        upto = before + gl.associative_scan(tiles, 0, add)
        own = (tile < upto) & (tile >= upto - tiles)
        sequence = gl.maximum(sequence, gl.max(gl.where(own, base + i, -1), axis=0))
        begin += gl.sum(gl.where(own, (tile - upto + tiles) * QUERIES, 0), axis=0)
        first += gl.sum(gl.where(own, firsts, 0), axis=0)
        tokens += gl.sum(gl.where(own, counts, 0), axis=0)
        start += gl.sum(gl.where(own, all_starts, 0), axis=0)
        before += gl.sum(tiles, axis=0)
    if sequence >= 0:
        table = tables + sequence * max_blocks
        end = start + gl.minimum(begin + QUERIES, tokens)
        tiles = gl.cdiv(end, TILE)
        dtype: gl.constexpr = queries.dtype.element_ty
        k_ring = gl.allocate_shared_memory(dtype, [STAGES, TILE, DIM_TILE], keys.layout)
        v_ring = gl.allocate_shared_memory(dtype, [STAGES, TILE, DIM_TILE], values.layout)
        lock: gl.constexpr = mbarrier.MBarrierLayout()
        full_k = gl.allocate_shared_memory(gl.int64, [STAGES, 1], lock)
        full_v = gl.allocate_shared_memory(gl.int64, [STAGES, 1], lock)
        free_k = gl.allocate_shared_memory(gl.int64, [STAGES, 1], lock)
        free_v = gl.allocate_shared_memory(gl.int64, [STAGES, 1], lock)
        for at in gl.static_range(STAGES):
            mbarrier.init(full_k.index(at), count=1)
            mbarrier.init(full_v.index(at), count=1)
            mbarrier.init(free_k.index(at), count=1)
            mbarrier.init(free_v.index(at), count=1)
        fence_async_shared()
        gl.warp_specialize(
            [
                (compute, (queries, out, first, tokens, start, begin, end, tiles, kv_head, scale,
                           k_ring, v_ring, full_k, full_v, free_k, free_v,
                           HEADS, GROUP, QUERIES, HEAD_DIM, DIM_TILE, TILE, STAGES)),
                (fetch, (keys, values, table, kv_head, tiles, k_ring, v_ring, full_k, full_v,
                         free_k, free_v, KV_HEADS, BLOCK_SIZE, STAGES)),
            ],
            [1],
            [24],
        )  # fmt: skip
