"""Device memory of a version of the engine `cuda`, from its files and limits alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blink_persistent.engines.cuda.kernels.cuts.choices import expert_order_room
from blink_persistent.engines.cuda.options import CudaOptions
from blink_persistent.engines.kv_memory import fitting_blocks
from blink_persistent.graph_grid import GraphGrid
from blink_persistent.samplers.default_cuda import scratch_bytes

if TYPE_CHECKING:
    from blink_server.importers.checkpoint import Architecture

_BYTES = 2  # of a weight, an activation, a KV element
_GRAPH_BYTES = 3 << 20  # of one uploaded executable graph, at most
_RUNTIME_BYTES = 1 << 30  # context, code, the libraries' own workspaces


def kv_entry_bytes(architecture: Architecture) -> int:
    """KV memory of one token."""
    return architecture.layers * 2 * architecture.kv_heads * architecture.head_dim * _BYTES


def weight_bytes(architecture: Architecture) -> int:
    """Device memory of the weights."""
    sizes = architecture.tensor_shapes().values()
    return _BYTES * sum(shape[0] * (shape[1] if len(shape) == 2 else 1) for shape in sizes)


def fixed_bytes(options: CudaOptions, grid: GraphGrid) -> int:
    """Device memory of everything but KV."""
    shape = options.architecture
    work = workspace_bytes(shape, most_tokens(grid), most_sampled(grid))
    scratch = scratch_bytes(max(grid.max_rows, grid.max_sequences), shape.vocabulary_size)
    graphs = len(grid.keys) * _GRAPH_BYTES
    return weight_bytes(shape) + work + scratch + graphs + _RUNTIME_BYTES


def most_tokens(grid: GraphGrid) -> int:
    """Tokens of the largest step."""
    return max(key.all_tokens for key in grid.keys)


def most_sampled(grid: GraphGrid) -> int:
    """Rows and sequences of the step that samples most."""
    return max(key.sequences + key.rows for key in grid.keys)


def workspace_bytes(shape: Architecture, tokens: int, rows: int) -> int:
    """Device memory of a `Workspace` for so many tokens, and rows and sequences together."""
    heads = 3 * shape.heads + 2 * shape.kv_heads
    per_token = 8 * shape.hidden_size + _BYTES * heads * shape.head_dim + 8
    per_row = 4 * shape.vocabulary_size + _BYTES * shape.hidden_size + 4
    if not shape.experts:
        per_token += 3 * _BYTES * shape.intermediate_size
        return tokens * per_token + rows * per_row
    per_pair = _BYTES * (shape.intermediate_size + shape.hidden_size) + 8
    per_token += shape.experts_per_token * per_pair + 4 * shape.experts
    order = expert_order_room(tokens, shape.experts, shape.experts_per_token)
    return tokens * per_token + rows * per_row + 4 * sum(order)


def choose_block_count(options: CudaOptions, grid: GraphGrid, context: int, budget: int) -> int:
    """The blocks asked for, or all that `budget` bytes leave room for, the null block included.

    Raises MemoryRefused where they do not fit, or where what is left does not hold one request of
    `context` tokens.
    """
    blocks = fitting_blocks(
        fixed=fixed_bytes(options, grid),
        block_bytes=options.block_size * kv_entry_bytes(options.architecture),
        least=options.block_count or 1 + -(-context // options.block_size),
        budget=budget,
    )
    return options.block_count or blocks
