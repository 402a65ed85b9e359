"""Ways to cut a wide product, and which of them is likely the best.

What `likely_wide_cut` goes by is read off 20 contests of three models' products at 16, 32 and 64
rows on an H200 (tests/bench/results/gpu-2026-11-30, `engine/choices-third-*`): its cut took 0.5 %
longer than the fastest on average, 2.8 % at most.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from blink_persistent.engines.cuda.kernels.cuts.choices import Shape
from blink_persistent.engines.cuda.kernels.cuts.likely_cuts import PROCESSORS
from blink_persistent.engines.cuda.kernels.cuts.wide_cut import ALIGNMENT, WideCut

LEAST_WIDE = 16  # rows of `ROW_TILES` from which wide products are the fastest
MOST_SHARED_BYTES = 227 << 10  # that a block may have
MOST_STAGES = 10
LEAST_STAGES = 3
FEATURES = range(16, 257, 8)
FEWEST_BLOCKS = 104  # that keep pace with the memory
SPLITS = (1, 2, 4, 8)
GATED_PASSES = (1, 2, 3, 4, 5)
WHOLE_PASSES = range(1, 25)  # of the vocabulary's

GOOD_FEATURES, GOOD_GATED_FEATURES = 96, 80  # of a tile
GOOD_STAGES = 5
SAME_IDLE = 0.05  # shares of idle multiprocessors that do not differ by more are as good
MANY_ROWS = 32  # of `ROW_TILES`, from which two warpgroups are better than one


def wide_candidates(
    shape: Shape, row_tile: int, *, gated: bool, in_parts: bool
) -> Iterator[WideCut]:
    """Those that leave the fewest multiprocessors idle, for each number of splits or passes.

    `shape` is that of the weight; `in_parts`: the result may be parts of a sum.
    """
    if row_tile < LEAST_WIDE:
        return
    size, depth = shape[0] // (2 if gated else 1), shape[1]
    for features, splits, blocks in _shares(size, gated=gated, in_parts=in_parts):
        for windows in (1, 2):
            for groups in _groups(features, gated=gated):
                cut = _cut(row_tile, features, splits, windows, groups, blocks, gated=gated)
                if cut is not None and cut.fits(size, depth):
                    yield cut


def likely_wide_cut(shape: Shape, row_tile: int, *, gated: bool, in_parts: bool) -> WideCut | None:
    """For a weight of that shape, if it can be cut so.

    A tile is best where it is neither small, which costs each block as many activations and steps,
    nor so large that few stages fit. Gate and up of many rows are best in one pass.
    """
    size = shape[0] // (2 if gated else 1)

    def rank(cut: WideCut) -> tuple[float, ...]:
        idle = round(idle_share(cut, size) / SAME_IDLE)
        good = GOOD_GATED_FEATURES if gated else GOOD_FEATURES
        off = round(abs(math.log(cut.features / good)), 2)
        if gated:
            passes = passes_of(cut, size) if row_tile > MANY_ROWS else 0
            few_stages = cut.stages < GOOD_STAGES
            return (idle, passes, off, few_stages, -cut.windows, cut.groups)
        return (idle, off, -cut.windows, cut.groups if row_tile < MANY_ROWS else -cut.groups)

    found = wide_candidates(shape, row_tile, gated=gated, in_parts=in_parts)
    return min(found, key=rank, default=None)


def passes_of(cut: WideCut, size: int) -> int:
    """Tiles of a block, of so many output features."""
    tiles = -(-size // cut.features)
    return -(-tiles // cut.blocks_for(size))


def idle_share(cut: WideCut, size: int) -> float:
    """Of the multiprocessors, those that have nothing to do."""
    tiles = -(-size // cut.features) * cut.splits
    return _idle_share(tiles, passes_of(cut, size))


def _idle_share(tiles: int, passes: int) -> float:
    return 1 - tiles / (passes * PROCESSORS)


def _shares(size: int, *, gated: bool, in_parts: bool) -> Iterator[tuple[int, int, int | None]]:
    """Features of a tile, splits and blocks."""
    for splits in SPLITS if in_parts else (1,):
        for passes in GATED_PASSES if gated else (1,) if in_parts else WHOLE_PASSES:
            offers = []
            for features in FEATURES:
                tiles = -(-size // features)
                blocks = -(-tiles // passes)
                whole = not gated or size % features == 0
                if whole and FEWEST_BLOCKS <= blocks * splits <= PROCESSORS:
                    offers.append((_idle_share(tiles * splits, passes), features, blocks))
            if offers:
                _, features, blocks = min(offers)
                yield features, splits, None if passes == 1 else blocks


def _groups(features: int, *, gated: bool) -> tuple[int, ...]:
    """Warpgroups that are tried."""
    if gated:
        return (-(-features // 64),)
    if features <= 64:
        return (1,)
    return (1, 2) if features <= 128 else (2,)


def _cut(
    row_tile: int,
    features: int,
    splits: int,
    windows: int,
    groups: int,
    blocks: int | None,
    *,
    gated: bool,
) -> WideCut | None:
    """With as many stages as there is room for."""
    for stages in range(MOST_STAGES, LEAST_STAGES - 1, -1):
        cut = WideCut(features, splits, windows, stages, groups, gated, blocks)
        if cut.shared_bytes(row_tile) + ALIGNMENT <= MOST_SHARED_BYTES:
            return cut
    return None
