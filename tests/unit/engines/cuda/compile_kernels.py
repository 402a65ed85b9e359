"""Compiles every kernel for a Hopper GPU, at shapes of Llama-3-8B, SmolLM2-135M, Qwen3-30B-A3B."""

from __future__ import annotations

from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from blink_persistent.engines.cuda.architectures import ARCHITECTURES
from blink_persistent.engines.cuda.kernels.cuts.choices import PageTiling, expert_tiling
from blink_persistent.engines.cuda.kernels.in_triton import (
    decode_attention,
    grouped,
    located,
    norm,
    prefill_attention,
    rotary,
    routing,
    stream,
    swiglu,
)
from blink_persistent.engines.cuda.kernels.page_attention import (
    OPTIONS,
    PageAttention,
    constants_of,
    pages,
)

INTS = {
    "rows",
    "max_blocks",
    "tokens",
    "sequences",
    "ahead",
    "heads",
    "readers",
    "entries_ahead",
    "features",
    "pairs",
    "blocks",
}
ALIGNED_INTS = {"size", "depth", "share"}
FLOATS = {"epsilon", "scale"}
INT_ARRAYS = {
    *("starts", "lengths", "tables", "positions", "entries", "cu_seqlens", "last"),
    *("token_ids", "chosen", "order", "block_experts"),
}
FLOAT_ARRAYS = {
    *("residual", "added", "cos_table", "sin_table", "partial", "log_sums"),
    *("scores", "shares"),
}


def kind_of(name: str) -> str:
    """The type of a kernel's argument, which its name tells."""
    if name in INTS | ALIGNED_INTS:
        return "i32"
    if name in FLOATS:
        return "fp32"
    if name in INT_ARRAYS:
        return "*i32"
    return "*fp32" if name in FLOAT_ARRAYS else "*bf16"


def compile_kernel(
    kernel: Any,
    constants: dict[str, Any],
    kinds: dict[str, str] | None = None,
    make_source: Any = ASTSource,
    **options: int,
) -> None:
    """As a launch with aligned arrays would compile it. `kinds`: what names do not tell."""
    names, constants = kernel.arg_names, {**constants, "CHAINED": True}
    known = {name: kind_of(name) for name in names} | (kinds or {})
    kinds = {name: "constexpr" if name in constants else known[name] for name in names}
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(names)
        if kinds[name].startswith("*") or name in ALIGNED_INTS
    }
    source = make_source(kernel, kinds, constants, aligned)
    compiled = triton.compile(
        source, target=GPUTarget("cuda", 90, 32), options={**options, "launch_pdl": True}
    )
    print("compiled", compiled.metadata.name, "shared", compiled.metadata.shared)


def compile_all() -> None:
    """Each kernel once, those that depend on heads for both models."""
    paged = {"BLOCK_SIZE": 64}
    compile_kernel(located.locate_decode, {**paged, "TILE": 256})
    compile_kernel(located.locate_prefill, {**paged, "TILE": 256})
    for kernel in (norm.embed_norm, norm.add_norm):
        parts = {"PARTS": 4} if kernel is norm.add_norm else {}
        compile_kernel(kernel, {"SIZE": 4096, "TILE": 4096, **parts}, num_warps=32)
    for rows, tile in ((16, 64), (32, 64), (64, 128)):
        cut = {"ROW_TILE": rows, "TILE": tile, "STEP": 64}
        for gated in (False, True):
            constants = {**cut, "GATED": gated}
            compile_kernel(stream.stream_product, constants, num_warps=4, num_stages=4)
    compile_kernel(swiglu.swiglu, {"SIZE": 14336, "TILE": 1024})
    for heads, kv_heads, size in ((32, 8, 128), (9, 3, 64)):
        shape = {"HEADS": heads, "KV_HEADS": kv_heads, "HEAD_DIM": size, **paged}
        halves = {"GROUP_TILE": 4, "HALF_TILE": size // 2, "NORMED": heads == 32}
        halves |= {"PARTS": 2, "BIASED": heads == 9}
        compile_kernel(rotary.rotate_append, shape | halves, num_warps=1)
        tiles = {"DIM_TILE": size, "TILE": 64}
        for count in (1, 16):
            splits = {"SPLITS": count, "GROUP_TILE": 16, "TILE": 32}
            kernel = decode_attention.attend_split
            compile_kernel(kernel, shape | tiles | splits, num_warps=4, num_stages=5)
        combined = {"HEAD_DIM": size, "SPLITS": 16, "SPLIT_TILE": 16, "DIM_TILE": size}
        compile_kernel(decode_attention.combine_splits, combined, num_warps=8)
        for query_tile, warps in ((128, 8), (16, 4)):
            queries = {"QUERY_TILE": query_tile}
            kernel = prefill_attention.attend_tile
            compile_kernel(kernel, shape | tiles | queries, num_warps=warps, num_stages=2)
    compile_experts()
    compile_pages()


def compile_experts() -> None:
    """As Qwen3-30B-A3B has them, for each tiling."""
    experts = {"EXPERT_TILE": 128}
    chosen = {"EXPERTS": 128, "CHOSEN": 8, "CHOSEN_TILE": 8}
    compile_kernel(routing.choose_experts, experts | chosen, num_warps=1)
    for tokens, pairs_at_once in ((1, 256), (256, 1024), (512, 1024)):
        tiling = expert_tiling(8 * tokens, 128)
        block = {"ROW_TILE": tiling.rows}
        compile_kernel(routing.sort_pairs, experts | block | {"TILE": pairs_at_once})
        for gated in (False, True):
            tile = {"CHOSEN": 8, "TILE": tiling.features, "STEP": tiling.step, "GATED": gated}
            options = {"num_warps": tiling.warps, "num_stages": tiling.stages}
            compile_kernel(grouped.grouped_product, block | tile, **options)
    scored = {"SIZE": 2048, "TILE": 2048, "PARTS": 8, "EXPERTS": 128, "SCORED": 4}
    compile_kernel(routing.norm_scores, scored, {"delta": "*fp32"}, num_warps=8)


def compile_pages() -> None:
    """Prefill attention for Hopper, where Triton is new enough."""
    for model in ("llama-3-8b", "smollm2-135m", "phi-4"):
        shape = ARCHITECTURES[model]
        if not PageAttention.fits(shape):
            continue
        from triton.experimental.gluon._runtime import GluonASTSource

        from blink_persistent.engines.cuda.kernels.in_triton.hopper_prefill import attend_pages

        size = shape.head_dim
        paged = pages(torch.empty(1, 1, 64, size, dtype=torch.bfloat16, device="meta"))
        kind = f"tensordesc<bf16[64,{paged.block_shape[1]}],{paged.layout!r}>"
        constants, kinds = constants_of(shape, PageTiling()), {"keys": kind, "values": kind}
        compile_kernel(attend_pages, constants, kinds, GluonASTSource, **OPTIONS)


if __name__ == "__main__":
    compile_all()
