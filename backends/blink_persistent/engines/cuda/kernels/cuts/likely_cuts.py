"""Ways to cut a product in CUDA C++, and which of them is likely the best.

`likely_cut` goes by arithmetic: the bandwidths of the memory and of the L2 cache, and how long a
warp takes for its step. Its constants are fitted to what an H200 measured, 86 cuts of Llama-3-8B's
products (tests/bench/results/gpu-2026-11-30): errors of 5 %. Of `primed_candidates`
`tests/bench/gpu/primed_products.py` measures those with the least estimates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from blink_persistent.engines.cuda.kernels.cuts.choices import ROW_TILES, Shape
from blink_persistent.engines.cuda.kernels.cuts.primed_cut import WINDOW, PrimedCut, stage_bytes
from blink_server.importers.checkpoint import Architecture

PROCESSORS = 131
"""Multiprocessors beside the resident scheduler's; a product fills each one's shared memory."""

SHARED_BYTES = 216 << 10
"""Of 228 KiB of a multiprocessor: what is left is for the small kernels between products."""

LIKELY_TILES = ROW_TILES[:2]
"""Of 64 rows every product was 25 to 73 % slower than a streamed one, and by `kernel_us` those of
32 are slower too: multiplications take longer than the memory."""

MEMORY_BANDWIDTH = 4.58e12  # bytes a second, measured
SHORT_RUNS = 0.92  # of it, where a step has 128 bytes of a row, not 256
CACHE_BANDWIDTH = 4.8e12  # of the L2 cache
CLOCK = 1.755e9  # cycles a second
START_US = 6.4  # of a kernel whose weights are all there: the first activations, the sum, its end
STEP_CYCLES = 360  # of a warp's step, beside its multiplications: barrier, addresses, copies
PAIR_CYCLES = 57  # of two multiplications in a row and what they read
WARP_CYCLES = 18  # of each warp's step, where there are many
BUSY_PAIR_CYCLES = 9.6  # and of its two multiplications
SHARPNESS = 9.5  # how little the others add to what takes longest
LATE_US = 2.0  # of a product that cannot begin to load beside the norm before it; a guess
MOST_WARPS = 16  # of a block, with 128 registers a thread
SPLITS = (1, 2, 3, 4, 5, 7, 8, 16)


def primed_candidates(
    shape: Shape, row_tile: int, *, gated: bool, in_parts: bool
) -> Iterator[PrimedCut]:
    """Every way to cut that leaves hardly any multiprocessor idle, in no order.

    `shape` is that of the weight; `in_parts`: the result may be parts of a sum.
    """
    size, depth = shape[0] // (2 if gated else 1), shape[1]
    whole = -(-size // (8 if gated else 16))
    tiles = 2 if row_tile > 16 else 1  # two share the activations that are read
    for splits in SPLITS if in_parts else (1,):
        most = min(PROCESSORS // splits, whole)
        each = -(-whole // most)
        for passes in range(1, each + 1):
            warps = -(-each // (passes * tiles))
            if not min(4, -(-each // tiles)) <= warps <= MOST_WARPS:
                continue
            for windows in (
                (2, 4) if row_tile < ROW_TILES[-1] else (2,)
            ):  # more would spill registers
                stages = min(SHARED_BYTES // stage_bytes(warps * tiles, row_tile, windows), 12)
                cut = PrimedCut(-(-whole // each), splits, warps, tiles, windows, stages, gated)
                if stages >= 3 and cut.fits(size, depth):
                    yield cut


def estimated_us(cut: PrimedCut, shape: Shape, row_tile: int) -> float:
    """Of a product of so many rows in a step: its kernel, what reads its parts, and its delay."""
    size = shape[0] // (2 if cut.gated else 1)
    late = 0.0 if leaves_registers(cut) else LATE_US
    return kernel_us(cut, shape, row_tile) + _part_bytes(cut, size, row_tile) / _cache() + late


def kernel_us(cut: PrimedCut, shape: Shape, row_tile: int) -> float:
    """Of one such product after the other: reading the memory, the L2 cache, or multiplying."""
    size, depth = shape[0] // (2 if cut.gated else 1), shape[1]
    whole = -(-size // cut.tile_features)
    each = -(-whole // cut.blocks)
    passes = -(-each // (cut.warps * cut.tiles))
    weights = 2 * shape[0] * depth
    activations = 2 * cut.blocks * passes * row_tile * depth
    unevenness = each * cut.blocks / whole
    bandwidth = 1e-6 * MEMORY_BANDWIDTH * (1.0 if cut.windows > 2 else SHORT_RUNS)
    memory = weights / bandwidth * (1 + unevenness) / 2
    cache = (weights + activations + _part_bytes(cut, size, row_tile)) / _cache()
    steps = passes * depth // (cut.splits * cut.windows * WINDOW)
    pairs = cut.windows * cut.tiles * row_tile // 8
    alone = STEP_CYCLES + PAIR_CYCLES * pairs
    busy = cut.warps * (WARP_CYCLES + BUSY_PAIR_CYCLES * pairs)
    multiply = START_US + 1e6 * steps * max(alone, busy) / CLOCK
    return float(sum(us**SHARPNESS for us in (memory, cache, multiply)) ** (1 / SHARPNESS))


def _cache() -> float:
    return 1e-6 * CACHE_BANDWIDTH


def _part_bytes(cut: PrimedCut, size: int, row_tile: int) -> int:
    return (2 if cut.gated else 4) * cut.splits * row_tile * size


def leaves_registers(cut: PrimedCut) -> bool:
    """Can a block of the primed norm be beside one of the product's?"""
    return cut.warps * cut.tiles <= 20  # 128 registers a thread with two tiles, 80 with one


def likely_cut(shape: Shape, row_tile: int, *, gated: bool, in_parts: bool) -> PrimedCut | None:
    """The candidate of the least estimate, of equal ones that with the fewest idle warps."""
    whole = -(-shape[0] // 16)

    def rank(cut: PrimedCut) -> tuple[float, int, int, int]:
        us = estimated_us(cut, shape, row_tile)
        idle = -(-whole // cut.blocks) % -(cut.warps * cut.tiles)
        return round(us, 1), -idle, abs(cut.warps - 8), -cut.shared_bytes(row_tile)

    found = primed_candidates(shape, row_tile, gated=gated, in_parts=in_parts)
    return min(found, key=rank, default=None)


APART = ("router", "head")
"""A step reads ahead in all other products; these are streamed, but for few vocabularies'."""


@dataclass(frozen=True, slots=True)
class StepProduct:
    """One of a step's products. `shape` is that of its weight, [out_features, in_features]."""

    name: str
    shape: Shape
    gated: bool = False
    in_parts: bool = True


def step_products(architecture: Architecture) -> list[StepProduct]:
    """All but those of a mixture's experts, by the names of `LayerWeights`, and the head."""
    hidden, inner = architecture.hidden_size, architecture.intermediate_size
    queries = architecture.heads * architecture.head_dim
    keys = architecture.kv_heads * architecture.head_dim
    attention = [
        StepProduct("qkv", (queries + 2 * keys, hidden)),
        StepProduct("output", (hidden, queries)),
    ]
    dense = [
        StepProduct("gate_up", (2 * inner, hidden), gated=True, in_parts=False),
        StepProduct("down", (hidden, inner)),
    ]
    router = [StepProduct("router", (architecture.experts, hidden), in_parts=False)]
    head = StepProduct("head", (architecture.vocabulary_size, hidden), in_parts=False)
    return [*attention, *(router if architecture.experts else dense), head]
