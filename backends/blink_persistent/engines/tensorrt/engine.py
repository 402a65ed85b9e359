"""The engine `tensorrt`: a plan, one execution context a key, captured for a scheduler on the GPU.

TensorRT executes nothing in service: the scheduler launches the captured graphs. Options are those
of `options.py`; those of a build are in `build_options.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from blink_persistent.engines import ProvisionLimits
from blink_persistent.engines.cuda.engine import kv_entry_bytes, workspace_bytes
from blink_persistent.engines.place import GpuPlace, gpu_place
from blink_persistent.engines.tensorrt.options import TensorRtOptions, read_options
from blink_persistent.gpu.presence import architecture
from blink_persistent.graph_grid import GraphGrid, grid_of
from blink_persistent.samplers.default_cuda import scratch_bytes
from blink_server.backend import BuildResult, ModelVersion
from blink_server.errors import InvalidModel, MemoryRefused, Problem, Unavailable

if TYPE_CHECKING:
    from pathlib import Path

    from blink_persistent.engines.tensorrt.provisioned import TensorRtProvisioned
    from blink_server.importers.checkpoint import Checkpoint

_GRAPH_BYTES = 3 << 20  # of one uploaded executable graph, at most
_CONTEXT_BYTES = 1 << 20  # of one execution context beside the memory that they share
_RUNTIME_BYTES = 1 << 30  # CUDA context, code


class TensorRtEngine:
    """Fulfils `Engine`, but for what it provisions: see `TensorRtProvisioned`."""

    import_options = ()  # a plan holds, and multiplies, bfloat16

    def check(self, version: ModelVersion) -> Sequence[Problem]:
        """Options, the plan's size, the grid; the GPU, if there is one. TensorRT is not asked."""
        try:
            options = read_options(version)
        except InvalidModel as error:
            return error.problems
        return _check_gpu(version, options)

    def place(self, version: ModelVersion) -> GpuPlace | None:
        """A GPU; which, "device" says."""
        flavour = read_options(version).flavour
        module = flavour.module_name() or flavour.modules[0]
        modules = ("cuda.bindings", module)
        return gpu_place(version.config["engine"], modules, extra=flavour.extra)

    def estimate(self, version: ModelVersion) -> int:
        """Bytes of device memory, with KV for one request of full length unless the options say.

        What TensorRT needs for a step is known when the plan is loaded; here it is taken to be
        what the engine `cuda` needs. All that the memory fraction leaves becomes KV memory too.
        """
        options, grid = read_options(version), grid_of(version)
        shape, tokens = options.plan.architecture, max(grid.max_rows, grid.max_prefill_tokens)
        step = workspace_bytes(shape, tokens, max(grid.max_rows, grid.max_sequences))
        blocks = options.block_count or 1 + options.plan.max_blocks
        return fixed_bytes(options, grid, step) + blocks * block_bytes(options)

    def build(
        self,
        checkpoint: Checkpoint,
        directory: Path,
        *,
        limits: Mapping[str, Any],
        options: Mapping[str, Any],
        progress: Callable[[str, float], None],
    ) -> BuildResult:
        """See `build_version`."""
        from blink_persistent.engines.tensorrt.build import build_version

        return build_version(
            checkpoint, directory, limits=limits, options=options, progress=progress
        )

    def provision(
        self,
        version: ModelVersion,
        grid: GraphGrid,
        limits: ProvisionLimits,
        *,
        progress: Callable[[str, float], None],
    ) -> TensorRtProvisioned:
        """Load the plan, take KV memory, capture every key of the grid.

        Raises InvalidModel, Unavailable where there is no GPU, TensorRT or memory or where the plan
        is another machine's, EngineFailure.
        """
        options = read_options(version)
        try:
            from blink_persistent.engines.tensorrt.provisioned import TensorRtProvisioned
        except ImportError as error:
            raise Unavailable(f"install the {options.flavour.extra!r} extra: {error}") from error
        return TensorRtProvisioned(version, grid, options, limits, progress=progress)


def _check_gpu(version: ModelVersion, options: TensorRtOptions) -> Sequence[Problem]:
    """Whether the plan is for the GPU that the version names; nothing where that is not there."""
    place, target = gpu_place(version.config["engine"], ()), options.plan.target
    here = architecture(place.device) if place is not None else ""
    if here in ("", target):
        return []
    expected = f"this GPU is {here}: build the version with --target {here}"
    file = version.directory / "config.json"
    return [Problem(file, "engine.plan.target", target, expected, of_machine=True)]


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
    fixed, one = fixed_bytes(options, grid, step_bytes), block_bytes(options)
    fits = (budget - fixed) // one
    least = options.block_count or 1 + options.plan.max_blocks
    if least > fits:
        raise MemoryRefused(
            f"memory: {fixed + least * one} bytes are needed, the version's share of what the "
            f"device has left is {budget}"
        )
    return options.block_count or min(fits, options.plan.blocks)
