"""The engine `cuda`: a decoder of PyTorch and Triton kernels, captured for a scheduler on the GPU.

PyTorch builds it and takes no part in a step: the scheduler launches the captured graphs. Options
are those of `options.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from blink_persistent.engines import ProvisionLimits
from blink_persistent.engines.cuda.kernels.choices import expert_order_room
from blink_persistent.engines.cuda.options import CudaOptions, read_options
from blink_persistent.engines.place import GpuPlace, gpu_place
from blink_persistent.graph_grid import GraphGrid, grid_of
from blink_persistent.samplers.default_cuda import scratch_bytes
from blink_server.backend import BuildResult, ModelVersion
from blink_server.errors import InvalidModel, MemoryRefused, Problem, Unavailable

if TYPE_CHECKING:
    from pathlib import Path

    from blink_persistent.engines.cuda.provisioned import CudaProvisioned
    from blink_server.importers.checkpoint import Architecture, Checkpoint

_BYTES = 2  # of a weight, an activation, a KV element
_GRAPH_BYTES = 3 << 20  # of one uploaded executable graph, at most
_RUNTIME_BYTES = 1 << 30  # context, code, the libraries' own workspaces


class CudaEngine:
    """Fulfils `Engine`, but for what it provisions: see `CudaProvisioned`."""

    import_options = ()  # weights are held, and multiplied, in bfloat16

    def check(self, version: ModelVersion) -> Sequence[Problem]:
        """Options and weights' headers; asks for no GPU."""
        try:
            read_options(version)
        except InvalidModel as error:
            return error.problems
        return []

    def place(self, version: ModelVersion) -> GpuPlace | None:
        """A GPU; which, "device" says."""
        return gpu_place(version.config["engine"], ("cuda.bindings", "torch", "triton"))

    def estimate(self, version: ModelVersion) -> int:
        """Bytes of device memory, with KV for one request of full length unless the options say.

        All that the memory fraction leaves becomes KV memory too.
        """
        options = read_options(version)
        grid = grid_of(version)
        context = version.config["limits"]["context_length"]
        blocks = options.block_count or 1 + -(-context // options.block_size)
        kv = blocks * options.block_size * kv_entry_bytes(options.architecture)
        return fixed_bytes(options, grid) + kv

    def build(
        self,
        checkpoint: Checkpoint,
        directory: Path,
        *,
        limits: Mapping[str, Any],
        options: Mapping[str, Any],
        progress: Callable[[str, float], None],
    ) -> BuildResult:
        """See `build_version`; asks for no GPU and no PyTorch."""
        from blink_persistent.engines.cuda.build import build_version

        return build_version(
            checkpoint, directory, limits=limits, options=options, progress=progress
        )

    def checkpoint(self, version: ModelVersion) -> Checkpoint:
        """The version's weights, for a build of another one. Raises InvalidModel."""
        from blink_persistent.engines.cuda.stored_checkpoint import StoredCheckpoint
        from blink_persistent.engines.random_checkpoint import open_random

        options = read_options(version)
        if options.file is None:
            model = version.config["engine"]["model"]
            return open_random(model, revision=None, progress=lambda stage, part: None)
        return StoredCheckpoint(version, version.directory / options.file)

    def provision(
        self,
        version: ModelVersion,
        grid: GraphGrid,
        limits: ProvisionLimits,
        *,
        progress: Callable[[str, float], None],
    ) -> CudaProvisioned:
        """Load weights, take KV memory, capture every key of the grid.

        Raises InvalidModel, Unavailable where there is no GPU, PyTorch or memory, EngineFailure.
        """
        options = read_options(version)
        # PyTorch then gives memory back by calls that do not wait for a resident scheduler.
        os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
        try:
            from blink_persistent.engines.cuda.provisioned import CudaProvisioned
        except ImportError as error:
            raise Unavailable(f"install the 'cuda' extra: {error}") from error
        return CudaProvisioned(version, grid, options, limits, progress=progress)


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
    block_bytes = options.block_size * kv_entry_bytes(options.architecture)
    fixed = fixed_bytes(options, grid)
    fits = (budget - fixed) // block_bytes
    least = options.block_count or 1 + -(-context // options.block_size)
    if least > fits:
        raise MemoryRefused(
            f"memory: {fixed + least * block_bytes} bytes are needed, the version's share of what "
            f"the device has left is {budget}"
        )
    return options.block_count or fits
