"""The attention kernels of the engine `cuda`, compiled ahead of time: no GPU is asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from blink_persistent.engines.cuda.kernels.cuts.choices import (
    DEFAULT_TILING,
    DOT_LEAST,
    MOST_SPLITS,
    PREFILL_TILE,
    QUERY_TILE,
    ROW_TILES,
    DecodeTiling,
)
from blink_persistent.engines.cuda.kernels.cuts.hopper import measured
from blink_persistent.engines.cuda.kernels.in_triton import (
    append,
    decode_attention,
    prefill_attention,
)
from blink_persistent.engines.tensorrt.attention_launches import AttentionShape
from blink_persistent.engines.tensorrt.kernel_archive import CompiledKernel, Role
from blink_server.importers.checkpoint import Architecture

_WARP = 32
_POINTERS = {
    **dict.fromkeys(("new_keys", "new_values", "queries", "keys", "values", "out"), "*bf16"),
    **dict.fromkeys(("starts", "lengths", "cu_seqlens", "tables"), "*i32"),
    **dict.fromkeys(("partial", "log_sums"), "*fp32"),
}
_NUMBERS = {"sequences": "i32", "max_blocks": "i32", "scale": "fp32"}
_ALIGNED = [["tt.divisibility", 16]]  # what every pointer of a launch is

Constants = Mapping[str, int | bool]


def attention_shape(
    architecture: Architecture, block_size: int, capability: tuple[int, int]
) -> AttentionShape:
    """What the launches of a model's attention need to know on GPUs of that capability."""
    return AttentionShape(
        heads=architecture.heads,
        kv_heads=architecture.kv_heads,
        head_dim=architecture.head_dim,
        block_size=block_size,
        programs=_tiling(architecture, capability).programs,
        scale=architecture.head_dim**-0.5 * math.log2(math.e),
    )


def compile_attention(
    architecture: Architecture, block_size: int, capability: tuple[int, int]
) -> list[CompiledKernel]:
    """Every kernel that `attention_launches` may ask for, for GPUs of that compute capability."""
    return [
        _compile(role, variant, kernel, constants, capability, options)
        for role, variant, kernel, constants, options in wanted_kernels(
            architecture, block_size, _tiling(architecture, capability)
        )
    ]


def wanted_kernels(
    architecture: Architecture, block_size: int, tiling: DecodeTiling = DEFAULT_TILING
) -> Iterator[tuple[Role, int, Any, Constants, dict[str, int]]]:
    """Each kernel's role and variant, the kernel in Triton, its constants, options of a launch."""
    heads, kv_heads, head_dim = architecture.heads, architecture.kv_heads, architecture.head_dim
    dim_tile = 1 << (head_dim - 1).bit_length()
    group_tile = max(1 << (heads // kv_heads - 1).bit_length(), DOT_LEAST)
    pages = {"KV_HEADS": kv_heads, "HEAD_DIM": head_dim, "BLOCK_SIZE": block_size}
    attend = {**pages, "HEADS": heads, "DIM_TILE": dim_tile}
    one = {**pages, "DIM_TILE": dim_tile}
    yield Role.APPEND_ROWS, 0, append.append_decode, one, {"num_warps": 1}
    yield Role.APPEND_PACKED, 0, append.append_prefill, one, {"num_warps": 1}
    for splits in _powers(1, MOST_SPLITS):
        cut = {"SPLITS": splits, "GROUP_TILE": group_tile, "TILE": min(block_size, tiling.tile)}
        options = {"num_warps": tiling.warps, "num_stages": tiling.stages}
        yield Role.ATTEND_ROWS, splits, decode_attention.attend_split, attend | cut, options
        if splits > 1:
            parts = {"HEAD_DIM": head_dim, "SPLITS": splits, "SPLIT_TILE": splits}
            warps = {"num_warps": max(1, min(splits * dim_tile // 256, 8))}
            constants = parts | {"DIM_TILE": dim_tile}
            yield Role.COMBINE_ROWS, splits, decode_attention.combine_splits, constants, warps
    for tile in _powers(DOT_LEAST, QUERY_TILE):
        cut = {"QUERY_TILE": tile, "TILE": min(block_size, PREFILL_TILE)}
        options = {"num_warps": 8 if tile == QUERY_TILE else 4, "num_stages": 2}
        yield Role.ATTEND_PACKED, tile, prefill_attention.attend_tile, attend | cut, options


def _compile(
    role: Role,
    variant: int,
    kernel: Any,
    constants: Constants,
    capability: tuple[int, int],
    options: dict[str, int],
) -> CompiledKernel:
    constants = {**constants, "CHAINED": False}
    names = kernel.arg_names
    kinds = {name: _kind(name, constants) for name in names}
    aligned = {(i,): _ALIGNED for i, name in enumerate(names) if name in _POINTERS}
    major, minor = capability
    target = GPUTarget("cuda", 10 * major + minor, _WARP)
    source = ASTSource(kernel, kinds, constants, aligned)
    with triton.knobs.compilation.scope():
        triton.knobs.compilation.disable_line_info = True  # half of a cubin, in every layer
        compiled = triton.compile(source, target=target, options=options)
    metadata = compiled.metadata
    if metadata.global_scratch_size or metadata.profile_scratch_size:
        raise RuntimeError(f"the kernel {metadata.name} wants scratch memory of its own")
    return CompiledKernel(
        role, variant, metadata.num_warps, metadata.shared, metadata.name, compiled.asm["cubin"]
    )


def _kind(name: str, constants: Constants) -> str:
    return "constexpr" if name in constants else (_POINTERS | _NUMBERS)[name]


def _powers(first: int, last: int) -> Iterator[int]:
    """Powers of two from the first to the last."""
    while first <= last:
        yield first
        first *= 2


def _tiling(architecture: Architecture, capability: tuple[int, int]) -> DecodeTiling:
    """How decode attention is cut: one way for all rows, so that a plan has few kernels."""
    heads = architecture.heads, architecture.kv_heads, architecture.head_dim
    return measured(capability)[1].get((heads, ROW_TILES[-1]), DEFAULT_TILING)
