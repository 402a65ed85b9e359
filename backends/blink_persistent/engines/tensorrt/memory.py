"""Device memory of a version of the engine `tensorrt`, but for what a plan tells once loaded."""

from __future__ import annotations

from blink_persistent.engines.cuda.memory import kv_entry_bytes
from blink_persistent.engines.kv_memory import fitting_blocks
from blink_persistent.engines.tensorrt.options import TensorRtOptions
from blink_persistent.graph_grid import GraphGrid
from blink_persistent.samplers.default_cuda import scratch_bytes

_GRAPH_BYTES = 3 << 20  # of one uploaded executable graph, at most
_CONTEXT_BYTES = 1 << 20  # of one execution context beside the memory that they share
_RUNTIME_BYTES = 1 << 30  # CUDA context, code


def block_bytes(options: TensorRtOptions) -> int:
    """KV memory of one block."""
    return options.plan.block_size * kv_entry_bytes(options.plan.architecture)


def fixed_bytes(options: TensorRtOptions, grid: GraphGrid, step_bytes: int) -> int:
    """Device memory of everything but KV; `step_bytes`: what the contexts share."""
    rows = max(grid.max_rows, grid.max_sequences)
    vocabulary = options.plan.architecture.vocabulary_size
    logits = 4 * rows * vocabulary + scratch_bytes(rows, vocabulary)
    keys = len(grid.keys) * (_GRAPH_BYTES + _CONTEXT_BYTES)
    return options.plan.file_bytes + step_bytes + logits + keys + _RUNTIME_BYTES


def choose_block_count(
    options: TensorRtOptions, grid: GraphGrid, step_bytes: int, budget: int
) -> int:
    """The blocks asked for, or all that `budget` bytes leave room for and the plan takes.

    The null block is one of them. Raises MemoryRefused where they do not fit, or where what is left
    does not hold one request of full length.
    """
    blocks = fitting_blocks(
        fixed=fixed_bytes(options, grid, step_bytes),
        block_bytes=block_bytes(options),
        least=options.block_count or 1 + options.plan.max_blocks,
        budget=budget,
    )
    return options.block_count or min(blocks, options.plan.blocks)
