"""Which kernels one attention layer launches for a step, in which grids, with which arguments.

Everything follows from shapes that a graph's key fixes: lengths, tables and positions are read on
the device. `csrc/tensorrt/attention_launches.h` does the same in C++.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from blink_persistent.engines.cuda.kernels.cuts.choices import DOT_LEAST, QUERY_TILE, DecodeTiling
from blink_persistent.engines.tensorrt.kernel_archive import CompiledKernel, Role

_FLOAT_BYTES = 4
_NO_SCRATCH = ((0, ctypes.c_void_p), (0, ctypes.c_void_p))  # Triton's last two, unused here

Argument = tuple[int | float, Any]
"""A value and its ctypes type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """One model's attention; `scale` is that of the scores times log2(e).

    `programs` is how many programs of decode attention one multiprocessor is to have.
    """

    heads: int
    kv_heads: int
    head_dim: int
    block_size: int
    programs: int
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffers:
    """Device addresses of a layer's tensors.

    queries, out: [tokens, heads, head_dim]; keys, values: [tokens, kv_heads, head_dim], new ones;
    key_pool, value_pool: [blocks, kv_heads, block_size, head_dim]; the rest are int32: tables
    [n, max_blocks], lengths and starts [n], cu_seqlens [n + 1]. workspace: `workspace_bytes`.
    """

    queries: int
    keys: int
    values: int
    key_pool: int
    value_pool: int
    tables: int
    lengths: int
    starts: int
    cu_seqlens: int
    out: int
    workspace: int


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of a kernel."""

    kernel: CompiledKernel
    grid: tuple[int, int, int]
    arguments: tuple[Argument, ...]


def attention_launches(
    shape: AttentionShape,
    kernels: Sequence[CompiledKernel],
    buffers: Buffers,
    *,
    tokens: int,
    sequences: int,
    max_blocks: int,
    processors: int,
) -> list[Launch]:
    """The launches of a step, in their order.

    As many sequences as tokens are rows, one token each; else prompts of together up to `tokens`
    tokens. `processors`: multiprocessors that the engine may fill. Raises ValueError where a
    kernel is missing.
    """
    if tokens == sequences:
        return _decode(shape, kernels, buffers, tokens, max_blocks, processors)
    return _prefill(shape, kernels, buffers, tokens, sequences, max_blocks)


def workspace_bytes(shape: AttentionShape, kernels: Sequence[CompiledKernel], rows: int) -> int:
    """Device memory for the parts of up to `rows` rows."""
    most = max(kernel.variant for kernel in kernels if kernel.role == Role.ATTEND_ROWS)
    return rows * shape.heads * most * (shape.head_dim + 1) * _FLOAT_BYTES


def query_tile(tokens: int) -> int:
    """Queries a program of prefill attention takes: the least power of two that holds all."""
    return min(max(1 << (tokens - 1).bit_length(), DOT_LEAST), QUERY_TILE)


def _decode(
    shape: AttentionShape,
    kernels: Sequence[CompiledKernel],
    at: Buffers,
    rows: int,
    max_blocks: int,
    processors: int,
) -> list[Launch]:
    capacity = max_blocks * shape.block_size
    tiling = DecodeTiling(programs=shape.programs)
    wanted = tiling.splits(rows, shape.kv_heads, capacity, processors)
    variants = [kernel.variant for kernel in kernels if kernel.role == Role.ATTEND_ROWS]
    splits = max((variant for variant in variants if variant <= wanted), default=1)
    partial, log_sums = (
        at.workspace,
        at.workspace + _FLOAT_BYTES * (rows * shape.heads * splits * shape.head_dim),
    )
    launches = [
        _launch(
            _find(kernels, Role.APPEND_ROWS),
            (rows, shape.kv_heads, 1),
            pointers=(at.keys, at.values, at.starts, at.lengths, at.tables),
            pools=(at.key_pool, at.value_pool),
            sizes=(max_blocks,),
        ),
        _launch(
            _find(kernels, Role.ATTEND_ROWS, splits),
            (rows, shape.kv_heads, splits),
            pointers=(at.queries, at.key_pool, at.value_pool, at.lengths, at.tables),
            pools=(partial, log_sums, at.out),
            sizes=(max_blocks,),
            scale=shape.scale,
        ),
    ]
    if splits > 1:
        combine = _find(kernels, Role.COMBINE_ROWS, splits)
        parts = (partial, log_sums, at.out)
        launches.append(_launch(combine, (rows * shape.heads, 1, 1), pointers=parts))
    return launches


def _prefill(
    shape: AttentionShape,
    kernels: Sequence[CompiledKernel],
    at: Buffers,
    tokens: int,
    sequences: int,
    max_blocks: int,
) -> list[Launch]:
    tile = query_tile(tokens)
    tiles = -(-tokens // tile) + sequences - 1
    places = (at.starts, at.cu_seqlens, at.tables)
    return [
        _launch(
            _find(kernels, Role.APPEND_PACKED),
            (tokens, shape.kv_heads, 1),
            pointers=(at.keys, at.values, *places),
            pools=(at.key_pool, at.value_pool),
            sizes=(sequences, max_blocks),
        ),
        _launch(
            _find(kernels, Role.ATTEND_PACKED, tile),
            (tiles, shape.heads, 1),
            pointers=(at.queries, at.key_pool, at.value_pool, *places),
            pools=(at.out,),
            sizes=(sequences, max_blocks),
            scale=shape.scale,
        ),
    ]


def _launch(
    kernel: CompiledKernel,
    grid: tuple[int, int, int],
    *,
    pointers: Sequence[int],
    pools: Sequence[int] = (),
    sizes: Sequence[int] = (),
    scale: float | None = None,
) -> Launch:
    arguments: list[Argument] = [(address, ctypes.c_void_p) for address in (*pointers, *pools)]
    arguments += [(size, ctypes.c_int32) for size in sizes]
    if scale is not None:
        arguments.append((scale, ctypes.c_float))
    return Launch(kernel, grid, (*arguments, *_NO_SCRATCH))


def _find(kernels: Sequence[CompiledKernel], role: Role, variant: int = 0) -> CompiledKernel:
    for kernel in kernels:
        if (kernel.role, kernel.variant) == (role, variant):
            return kernel
    raise ValueError(f"the plan has no kernel {role.name.lower()} for {variant}")
