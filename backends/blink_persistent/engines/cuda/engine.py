"""The engine `cuda`: a decoder of PyTorch and Triton kernels, captured for a scheduler on the GPU.

PyTorch builds it and takes no part in a step: the scheduler launches the captured graphs. Options
are those of `options.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from blink_persistent.engines import ProvisionLimits
from blink_persistent.engines.cuda.memory import fixed_bytes, kv_entry_bytes
from blink_persistent.engines.cuda.options import read_options
from blink_persistent.engines.place import GpuPlace, gpu_place
from blink_persistent.graph_grid import GraphGrid, grid_of
from blink_server.backend import BuildResult, ModelVersion
from blink_server.errors import InvalidModel, Problem, Unavailable

if TYPE_CHECKING:
    from pathlib import Path

    from blink_persistent.engines.cuda.provisioned import CudaProvisioned
    from blink_server.importers.checkpoint import Checkpoint


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
