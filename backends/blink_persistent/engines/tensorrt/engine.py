"""The engine `tensorrt`: a plan, one execution context a key, captured for a scheduler on the GPU.

TensorRT executes nothing in service: the scheduler launches the captured graphs. Options are those
of `options.py`; those of a build are in `build_options.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from blink_persistent.engines import ProvisionLimits
from blink_persistent.engines.cuda.memory import workspace_bytes
from blink_persistent.engines.place import GpuPlace, gpu_place
from blink_persistent.engines.tensorrt.memory import block_bytes, fixed_bytes
from blink_persistent.engines.tensorrt.options import TensorRtOptions, read_options
from blink_persistent.gpu.presence import architecture
from blink_persistent.graph_grid import GraphGrid, grid_of
from blink_server.backend import BuildResult, ModelVersion
from blink_server.errors import InvalidModel, Problem, Unavailable

if TYPE_CHECKING:
    from pathlib import Path

    from blink_persistent.engines.tensorrt.provisioned import TensorRtProvisioned
    from blink_server.importers.checkpoint import Checkpoint


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
