"""What was measured to be fastest on an H200: how the kernels of a step are cut, and of which kind.

1, 16, 32 and 64 rows were measured (tests/bench/results/gpu-2026-11-30), for `ROW_TILES` 8 to 64.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import TypeVar

from blink_persistent.engines.cuda.kernels.cuts.choices import (
    ROW_TILES,
    AheadCut,
    AnyAttention,
    Cut,
    Cuts,
    DecodeTiling,
    Heads,
    Mixture,
    Shape,
    StepChoices,
    Tilings,
    row_tile,
)
from blink_persistent.engines.cuda.kernels.cuts.direct_attention_cut import DirectCut
from blink_persistent.engines.cuda.kernels.cuts.even_attention_cut import EvenCut
from blink_persistent.engines.cuda.kernels.cuts.layers_cut import (
    LayerFeatures,
    LayersCut,
    layers_fit,
)
from blink_persistent.engines.cuda.kernels.cuts.likely_cuts import APART, PROCESSORS, step_products
from blink_persistent.engines.cuda.kernels.cuts.one_token_cut import OneTokenCut
from blink_persistent.engines.cuda.kernels.cuts.primed_cut import PrimedCut
from blink_persistent.engines.cuda.kernels.cuts.wide_cut import WideCut
from blink_server.importers.checkpoint import Architecture

Choice = TypeVar("Choice")
What = TypeVar("What")

_LLAMA_8B = {  # also Llama 3.1's and Mistral's layers
    ((6144, 4096), 8): Cut(features=96, step=128, splits=2, stages=4, warps=8),
    ((6144, 4096), 16): Cut(features=96, step=128, splits=2, stages=4, warps=8),
    ((6144, 4096), 64): Cut(features=48, step=128, splits=1, stages=5, warps=4),
    ((4096, 4096), 8): Cut(features=128, step=128, splits=4, stages=4, warps=8),
    ((4096, 4096), 16): Cut(features=64, step=128, splits=4, stages=5, warps=4),
    ((4096, 4096), 64): Cut(features=64, step=64, splits=2, stages=8, warps=4),
    ((28672, 4096), 8): Cut(features=56, step=128, splits=1, stages=3, warps=4),
    ((28672, 4096), 16): Cut(features=56, step=128, splits=1, stages=3, warps=4),
    ((28672, 4096), 64): Cut(features=56, step=64, splits=1, stages=4, warps=4),
    ((4096, 14336), 8): Cut(features=128, step=128, splits=4, stages=4, warps=8),
    ((4096, 14336), 16): Cut(features=128, step=128, splits=4, stages=4, warps=8),
    ((4096, 14336), 64): Cut(features=64, step=128, splits=2, stages=5, warps=4),
    ((128256, 4096), 8): Cut(features=64, step=128, splits=1, stages=3, warps=4),
    ((128256, 4096), 16): Cut(features=64, step=128, splits=1, stages=3, warps=4),
    ((128256, 4096), 64): Cut(features=128, step=128, splits=1, stages=4, warps=8),
}
_SMOLLM2_135M = {
    ((960, 576), 8): Cut(features=64, step=64, splits=3, stages=4, warps=4),
    ((960, 576), 16): Cut(features=64, step=64, splits=3, stages=4, warps=4),
    ((960, 576), 64): Cut(features=64, step=64, splits=3, stages=8, warps=4),
    ((576, 576), 8): Cut(features=64, step=64, splits=3, stages=8, warps=4),
    ((576, 576), 16): Cut(features=64, step=64, splits=3, stages=8, warps=4),
    ((576, 576), 64): Cut(features=64, step=64, splits=9, stages=8, warps=4),
    ((3072, 576), 8): Cut(features=64, step=64, splits=1, stages=6, warps=4),
    ((3072, 576), 16): Cut(features=64, step=64, splits=1, stages=6, warps=4),
    ((3072, 576), 64): Cut(features=64, step=64, splits=1, stages=6, warps=4),
    ((576, 1536), 8): Cut(features=64, step=64, splits=8, stages=4, warps=4),
    ((576, 1536), 16): Cut(features=64, step=64, splits=8, stages=4, warps=4),
    ((576, 1536), 64): Cut(features=64, step=64, splits=8, stages=8, warps=4),
}
_QWEN3_32B = {
    ((10240, 5120), 8): Cut(features=80, step=64, splits=1, stages=8, warps=4),
    ((10240, 5120), 16): Cut(features=80, step=128, splits=1, stages=4, warps=8),
    ((10240, 5120), 32): Cut(features=80, step=64, splits=1, stages=8, warps=8),
    ((5120, 8192), 8): Cut(features=80, step=128, splits=2, stages=4, warps=8),
    ((5120, 8192), 16): Cut(features=80, step=128, splits=2, stages=4, warps=8),
    ((5120, 8192), 64): Cut(features=80, step=128, splits=2, stages=4, warps=8),
    ((51200, 5120), 8): Cut(features=50, step=128, splits=1, stages=3, warps=4),
    ((51200, 5120), 16): Cut(features=50, step=128, splits=1, stages=3, warps=4),
    ((51200, 5120), 64): Cut(features=100, step=64, splits=1, stages=5, warps=8),
    ((5120, 25600), 8): Cut(features=80, step=64, splits=4, stages=5, warps=4),
    ((5120, 25600), 16): Cut(features=80, step=64, splits=2, stages=8, warps=4),
    ((5120, 25600), 32): Cut(features=80, step=128, splits=2, stages=4, warps=8),
    ((151936, 5120), 8): Cut(features=64, step=128, splits=1, stages=3, warps=4),
    ((151936, 5120), 16): Cut(features=64, step=128, splits=1, stages=5, warps=4),
    ((151936, 5120), 64): Cut(features=128, step=128, splits=1, stages=4, warps=8),
}
_QWEN3_30B_A3B = {
    ((5120, 2048), 8): Cut(features=80, step=64, splits=2, stages=8, warps=4),
    ((5120, 2048), 16): Cut(features=80, step=64, splits=2, stages=8, warps=4),
    ((5120, 2048), 32): Cut(features=80, step=128, splits=2, stages=4, warps=8),
    ((2048, 4096), 8): Cut(features=128, step=64, splits=8, stages=8, warps=4),
    ((2048, 4096), 16): Cut(features=128, step=64, splits=8, stages=8, warps=4),
    ((2048, 4096), 64): Cut(features=64, step=64, splits=4, stages=8, warps=4),
    ((128, 2048), 8): Cut(features=64, step=64, splits=1, stages=8, warps=4),
    ((128, 2048), 16): Cut(features=64, step=64, splits=1, stages=8, warps=4),
    ((128, 2048), 32): Cut(features=64, step=128, splits=1, stages=3, warps=4),
    ((128, 2048), 64): Cut(features=64, step=128, splits=1, stages=5, warps=4),
    ((151936, 2048), 8): Cut(features=64, step=128, splits=1, stages=3, warps=4),
    ((151936, 2048), 16): Cut(features=64, step=128, splits=1, stages=3, warps=4),
    ((151936, 2048), 64): Cut(features=64, step=128, splits=1, stages=3, warps=4),
}
_PHI_4 = {
    ((7680, 5120), 8): Cut(features=120, step=128, splits=2, stages=4, warps=8),
    ((7680, 5120), 16): Cut(features=120, step=128, splits=2, stages=4, warps=8),
    ((7680, 5120), 64): Cut(features=60, step=128, splits=1, stages=5, warps=4),
    ((5120, 5120), 8): Cut(features=80, step=64, splits=2, stages=8, warps=4),
    ((5120, 5120), 16): Cut(features=80, step=128, splits=2, stages=4, warps=8),
    ((5120, 5120), 64): Cut(features=80, step=64, splits=2, stages=8, warps=8),
    ((35840, 5120), 8): Cut(features=70, step=64, splits=1, stages=5, warps=8),
    ((35840, 5120), 16): Cut(features=70, step=128, splits=1, stages=3, warps=8),
    ((35840, 5120), 32): Cut(features=70, step=64, splits=1, stages=4, warps=8),
    ((5120, 17920), 8): Cut(features=80, step=64, splits=2, stages=8, warps=4),
    ((5120, 17920), 16): Cut(features=80, step=64, splits=2, stages=8, warps=8),
    ((5120, 17920), 64): Cut(features=80, step=128, splits=2, stages=4, warps=8),
    ((100352, 5120), 8): Cut(features=64, step=128, splits=1, stages=3, warps=4),
    ((100352, 5120), 16): Cut(features=64, step=128, splits=1, stages=5, warps=4),
    ((100352, 5120), 64): Cut(features=128, step=128, splits=1, stages=4, warps=8),
}


def _with_32(measured: Mapping[tuple[What, int], Choice]) -> dict[tuple[What, int], Choice]:
    """Of 17 to 32 rows few were measured: where nothing else is said they have what 64 have."""
    of_64 = {(what, 32): choice for (what, tile), choice in measured.items() if tile == 64}
    return {**of_64, **measured}


# Where the library is best at 64 rows, 32 have what was streamed fastest there: at 16 the library
# takes 5 to 13 % longer, and chaining, for which all products must be streamed, gives 1 to 3 %.
HOPPER_CUTS: Cuts = _with_32(_LLAMA_8B | _SMOLLM2_135M | _QWEN3_32B | _QWEN3_30B_A3B | _PHI_4)

HOPPER_AHEAD: Mapping[tuple[Shape, int], AheadCut] = {
    # Llama-3-8B's
    ((6144, 4096), 8): PrimedCut(
        blocks=32, splits=4, warps=6, tiles=1, windows=4, stages=7, gated=False
    ),
    ((4096, 4096), 8): PrimedCut(
        blocks=16, splits=8, warps=16, tiles=1, windows=4, stages=3, gated=False
    ),
    ((28672, 4096), 8): PrimedCut(
        blocks=128, splits=1, warps=14, tiles=1, windows=4, stages=3, gated=True
    ),
    ((4096, 14336), 8): PrimedCut(
        blocks=32, splits=4, warps=8, tiles=1, windows=4, stages=5, gated=False
    ),
    ((6144, 4096), 16): WideCut(features=96, splits=2, windows=1, stages=14, groups=1),
    ((4096, 4096), 16): WideCut(features=128, splits=4, windows=1, stages=12, groups=2),
    ((28672, 4096), 16): WideCut(features=112, windows=1, stages=7, groups=2, gated=True),
    ((4096, 14336), 16): WideCut(features=128, splits=4, windows=1, stages=7, groups=2),
    ((128256, 4096), 16): WideCut(features=112, windows=2, stages=7, groups=1, blocks=128),
    ((6144, 4096), 32): WideCut(features=96, splits=2, windows=1, stages=12, groups=1),
    ((4096, 4096), 32): WideCut(features=64, splits=2, windows=2, stages=8, groups=1),
    ((28672, 4096), 32): WideCut(
        features=56, windows=1, stages=7, groups=1, gated=True, blocks=128
    ),
    ((4096, 14336), 32): WideCut(features=64, splits=2, windows=2, stages=8, groups=1),
    ((6144, 4096), 64): WideCut(features=96, splits=2, windows=1, stages=10, groups=1),
    ((4096, 4096), 64): WideCut(features=64, splits=2, windows=2, stages=6, groups=1),
    ((28672, 4096), 64): WideCut(
        features=56, windows=2, stages=5, groups=1, gated=True, blocks=128
    ),
    ((4096, 14336), 64): WideCut(features=64, splits=2, windows=2, stages=6, groups=1),
    # Phi-4's
    ((7680, 5120), 16): WideCut(features=64, windows=2, stages=10, groups=1),
    ((5120, 5120), 16): WideCut(features=160, splits=4, windows=1, stages=9, groups=2),
    ((35840, 5120), 16): WideCut(
        features=40, windows=1, stages=10, groups=1, gated=True, blocks=112
    ),
    ((5120, 17920), 16): WideCut(features=80, splits=2, windows=2, stages=9, groups=1),
    ((7680, 5120), 32): WideCut(features=120, splits=2, windows=1, stages=10, groups=2),
    ((5120, 5120), 32): WideCut(features=80, splits=2, windows=2, stages=8, groups=2),
    ((35840, 5120), 32): WideCut(features=160, windows=1, stages=5, groups=3, gated=True),
    ((5120, 17920), 32): WideCut(features=160, splits=4, windows=2, stages=4, groups=2),
    ((7680, 5120), 64): WideCut(features=120, splits=2, windows=1, stages=9, groups=2),
    ((5120, 5120), 64): WideCut(features=80, splits=2, windows=2, stages=6, groups=2),
    ((35840, 5120), 64): WideCut(features=160, windows=1, stages=4, groups=3, gated=True),
    ((5120, 17920), 64): WideCut(features=160, splits=4, windows=2, stages=4, groups=2),
    # Qwen3-32B's
    ((10240, 5120), 16): WideCut(features=160, splits=2, windows=2, stages=4, groups=2),
    ((5120, 8192), 16): WideCut(features=80, splits=2, windows=2, stages=9, groups=1),
    ((51200, 5120), 16): WideCut(
        features=40, windows=2, stages=9, groups=1, gated=True, blocks=128
    ),
    ((5120, 25600), 16): WideCut(features=160, splits=4, windows=2, stages=4, groups=2),
    ((10240, 5120), 32): WideCut(features=80, windows=2, stages=8, groups=2),
    ((5120, 8192), 32): WideCut(features=80, splits=2, windows=2, stages=8, groups=2),
    ((51200, 5120), 32): WideCut(
        features=40, windows=2, stages=8, groups=1, gated=True, blocks=128
    ),
    ((5120, 25600), 32): WideCut(features=80, splits=2, windows=2, stages=8, groups=1),
    ((10240, 5120), 64): WideCut(features=80, windows=1, stages=10, groups=2),
    ((5120, 8192), 64): WideCut(features=80, splits=2, windows=1, stages=10, groups=2),
    ((51200, 5120), 64): WideCut(features=200, windows=1, stages=3, groups=4, gated=True),
    ((5120, 25600), 64): WideCut(features=160, splits=4, windows=2, stages=4, groups=2),
    # Qwen3-30B-A3B's
    ((5120, 2048), 8): PrimedCut(
        blocks=32, splits=4, warps=10, tiles=1, windows=4, stages=3, gated=False
    ),
    ((2048, 4096), 8): PrimedCut(
        blocks=16, splits=8, warps=8, tiles=1, windows=4, stages=4, gated=False
    ),
    ((5120, 2048), 16): WideCut(features=160, splits=4, windows=1, stages=9, groups=2),
    ((2048, 4096), 16): WideCut(features=128, splits=8, windows=2, stages=6, groups=2),
    ((5120, 2048), 32): WideCut(features=80, splits=2, windows=2, stages=5, groups=2),
    ((2048, 4096), 32): WideCut(features=64, splits=4, windows=2, stages=5, groups=1),
    ((5120, 2048), 64): WideCut(features=80, splits=2, windows=2, stages=6, groups=2),
    ((2048, 4096), 64): WideCut(features=64, splits=4, windows=2, stages=7, groups=1),
}
"""In place of `HOPPER_CUTS`, in steps whose layers have no other products but a router's and its
experts': primed ones for few rows, wide ones for more."""

HOPPER_TILINGS: Tilings = _with_32(
    {
        ((32, 8, 128), 8): DecodeTiling(tile=64, programs=3, warps=4, stages=5),
        ((32, 8, 128), 16): DecodeTiling(tile=64, programs=4, warps=4, stages=3),
        ((32, 8, 128), 64): DecodeTiling(tile=64, programs=4, warps=4, stages=3),
        ((9, 3, 64), 8): DecodeTiling(tile=64, programs=3, warps=4, stages=5),
        ((9, 3, 64), 16): DecodeTiling(tile=64, programs=4, warps=8, stages=3),
        ((9, 3, 64), 64): DecodeTiling(tile=64, programs=6, warps=4, stages=3),
        ((64, 8, 128), 8): DecodeTiling(tile=32, programs=5, warps=4, stages=5),
        ((64, 8, 128), 16): DecodeTiling(tile=64, programs=4, warps=4, stages=3),
        ((64, 8, 128), 64): DecodeTiling(tile=32, programs=5, warps=4, stages=5),
        ((32, 4, 128), 8): DecodeTiling(tile=64, programs=3, warps=4, stages=5),
        ((32, 4, 128), 16): DecodeTiling(tile=64, programs=3, warps=4, stages=5),
        ((32, 4, 128), 64): DecodeTiling(tile=64, programs=3, warps=4, stages=5),
        ((40, 10, 128), 8): DecodeTiling(tile=64, programs=3, warps=4, stages=5),
        ((40, 10, 128), 16): DecodeTiling(tile=64, programs=3, warps=4, stages=5),
        ((40, 10, 128), 64): DecodeTiling(tile=64, programs=4, warps=4, stages=3),
    }
)

HOPPER_PREFILL: Set[Heads] = frozenset({(32, 8, 128), (64, 8, 128), (32, 4, 128), (40, 10, 128)})
"""Heads whose prefill attention is that for Hopper: measured for the first, 1.4 to 2 times as fast
as Triton's; the others differ from it in numbers only."""

HOPPER_ATTENTIONS: Mapping[tuple[Heads, int], AnyAttention] = {
    ((32, 8, 128), 1): DirectCut(warps=8, resident=1, clustered=True, most=8),
    ((32, 8, 128), 4): EvenCut(warps=8, pairs=4, resident=1),
    ((32, 8, 128), 8): EvenCut(warps=4, pairs=2, resident=2),
    ((32, 8, 128), 16): EvenCut(warps=4, pairs=2, resident=2),
    ((32, 8, 128), 32): EvenCut(warps=4, pairs=2, resident=2),
    ((32, 8, 128), 64): EvenCut(warps=4, pairs=2, resident=2),
    ((32, 4, 128), 1): DirectCut(warps=4, resident=3, clustered=True, most=16),
    ((32, 4, 128), 8): EvenCut(warps=8, pairs=4, resident=1),
    ((32, 4, 128), 16): EvenCut(warps=8, pairs=4, resident=1),
    ((32, 4, 128), 32): EvenCut(warps=8, pairs=4, resident=1),
    ((32, 4, 128), 64): EvenCut(warps=4, pairs=2, resident=2),
    ((40, 10, 128), 16): EvenCut(warps=4, pairs=2, resident=2),
    ((40, 10, 128), 32): EvenCut(warps=4, pairs=2, resident=2),
    ((40, 10, 128), 64): EvenCut(warps=4, pairs=2, resident=2),
    ((64, 8, 128), 16): EvenCut(warps=8, pairs=4, resident=1),
    ((64, 8, 128), 32): EvenCut(warps=4, pairs=2, resident=2),
    ((64, 8, 128), 64): EvenCut(warps=4, pairs=2, resident=2),
}
"""In place of Triton's kernels, by the most rows: beside products of `HOPPER_AHEAD`; even shares
from `LEAST_EVEN` on beside any. Measured at 1, 16, 32 and 64 rows of equal lengths; with Llama's
heads also at 2, at every fourth number up to 32, and of other lengths; with Qwen3-30B-A3B's also at
2, 4 and 8."""

LEAST_EVEN = 16
"""The fewest rows, of those that the table names, for which attention in even shares was measured
where nothing is chained: beside no products, and in mixed steps."""

HOPPER_NORMS: Mapping[int, Set[int]] = {5120: {16, 32, 64}}
"""Row tiles of the primed norm, by a model's hidden size: Triton's computes 8,192 features for it;
of 4,096 both take as long."""

HOPPER_EXPERTS: Mapping[Mixture, OneTokenCut] = {
    (128, 8, 2048, 768): OneTokenCut(
        gate=PrimedCut(blocks=16, warps=6, stages=5, gated=True), sum_stages=2, scored=2
    ),
}
"""Of steps of one token whose layers' other products are of `HOPPER_AHEAD`. A gate's block takes
more than half of a multiprocessor's shared memory and leaves room for one of the sum's: where two
of the gate's fitted, steps were 15 % longer."""

HOPPER_LAYERS: Mapping[int, LayersCut] = {
    8: LayersCut(stages=7, qkv=4, output=6, gate_up=1, down=6, early=2, flight=7, paged=2),
    16: LayersCut(stages=7, qkv=3, output=5, gate_up=1, down=5, early=2, flight=7, paged=2),
}
"""Of every model that `layers_fit`, by the most rows; measured for Llama-3-8B and Qwen3-8B. With
more rows their activations leave a multiprocessor too little room for weights: cut for 24 and 32,
steps of so many are 5 and 3 % longer than with other kernels."""


def measured(capability: tuple[int, int]) -> tuple[Cuts, Tilings]:
    """Streamed products and Triton's attention, for a GPU of that compute capability.

    The library computes products that are missing; `DEFAULT_TILING` is used for missing heads.
    """
    return (HOPPER_CUTS, HOPPER_TILINGS) if capability == (9, 0) else ({}, {})


def prefills_by_pages(architecture: Architecture, capability: tuple[int, int]) -> bool:
    """Is prefill attention for Hopper the fastest on a GPU of that compute capability?"""
    heads = architecture.heads, architecture.kv_heads, architecture.head_dim
    return capability == (9, 0) and heads in HOPPER_PREFILL


def measured_choices(
    architecture: Architecture, capability: tuple[int, int], processors: int = PROCESSORS
) -> StepChoices:
    """What a model's steps have on such a GPU, with so many multiprocessors for them.

    Products that read ahead only for numbers of rows for which all products of its layers, but for
    those of experts, are in the tables, a router's among those that are streamed: it is worth it in
    a chain, and only such chains were measured. Nor where some of a product's blocks would have no
    multiprocessor to themselves: it would take twice as long. Attention in even shares needs no
    chain: alone it is a tenth to a quarter faster than Triton's.
    """
    streamed, _ = measured(capability)
    if not streamed:
        return StepChoices()
    products = step_products(architecture)
    shapes = {product.shape for product in products}
    reading_ahead = {
        (shape, tile): cut
        for (shape, tile), cut in HOPPER_AHEAD.items()
        if shape in shapes and blocks_of(cut, shape) <= processors
    }
    ahead = {
        tile
        for tile in ROW_TILES
        if all((p.shape, tile) in reading_ahead for p in products if p.name not in APART)
        and all((p.shape, tile) in streamed for p in products if p.name == "router")
    }
    heads = architecture.heads, architecture.kv_heads, architecture.head_dim
    mixture = (
        *(architecture.experts, architecture.experts_per_token),
        *(architecture.hidden_size, architecture.intermediate_size),
    )
    return StepChoices(
        cuts={**streamed, **{key: cut for key, cut in reading_ahead.items() if key[1] in ahead}},
        attentions={
            rows: cut
            for (of, rows), cut in HOPPER_ATTENTIONS.items()
            if of == heads
            and (row_tile(rows) in ahead or (isinstance(cut, EvenCut) and rows >= LEAST_EVEN))
        },
        norms=ahead & HOPPER_NORMS.get(architecture.hidden_size, set()),
        one_token_experts=HOPPER_EXPERTS.get(mixture) if row_tile(1) in ahead else None,
        layers=_layers(architecture, capability, processors),
    )


def _layers(
    architecture: Architecture, capability: tuple[int, int], processors: int
) -> dict[int, LayersCut]:
    """Of `HOPPER_LAYERS`, those that fit the model's widths."""
    if not layers_fit(architecture, capability, processors):
        return {}
    features = LayerFeatures.of(architecture)
    return {rows: cut for rows, cut in HOPPER_LAYERS.items() if cut.fits(rows, features)}


def blocks_of(cut: AheadCut, shape: Shape) -> int:
    """Of a product with such a weight, at most one a multiprocessor."""
    if isinstance(cut, PrimedCut):
        return cut.blocks * cut.splits
    return cut.blocks_for(shape[0] // (2 if cut.gated else 1)) * cut.splits
