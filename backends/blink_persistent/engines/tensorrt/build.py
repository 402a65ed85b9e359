"""What a build writes for the engine `tensorrt`: a plan, what is in it, limits and a graph grid."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from blink_persistent.engines.cuda.options import unservable
from blink_persistent.engines.cuda.stored_checkpoint import StoredCheckpoint
from blink_persistent.engines.cuda.weight_file import WEIGHT_FILE, write_weights
from blink_persistent.engines.tensorrt.attention import PagedAttention
from blink_persistent.engines.tensorrt.build_options import BuildOptions, read_build_options
from blink_persistent.engines.tensorrt.experts import NATIVE_TARGETS
from blink_persistent.engines.tensorrt.flavour import message_log
from blink_persistent.engines.tensorrt.layers import Layers
from blink_persistent.engines.tensorrt.native_attention import NativeAttention
from blink_persistent.engines.tensorrt.network import Pages, build_network
from blink_persistent.engines.tensorrt.options import DTYPE, NATIVE, PLAN_FILE
from blink_persistent.engines.tensorrt.plan_builder import PlanShape, targets, write_plan
from blink_persistent.engines.tensorrt.plan_description import (
    LAYOUT,
    PlanDescription,
    StepRange,
    capability_of,
    grid_hash,
)
from blink_persistent.gpu.compile import cache_directory
from blink_persistent.graph_grid import GraphGrid, default_grid
from blink_server.backend import BuildResult, ModelVersion
from blink_server.errors import InvalidModel, Problem, Unavailable
from blink_server.importers.checkpoint import Architecture, Checkpoint

_SLOTS, _SEQUENCES = 4096, 8
_USUAL = {"context_length": 8192, "max_rows": 64, "max_prefill_tokens": 2048}
_NATIVE = {"context_length": 2048, "max_rows": 8, "max_prefill_tokens": 256}
"""Smaller, since native attention's memory grows with rows times context times tokens."""

_WARM_UP = {"prompt": "Hello", "max_tokens": 4}
_WARM_UP_CONTEXT = 64  # that certainly holds it
_SMALLEST_PREFILL = 16  # more than sequences, so that no prefill step looks like a decode step

Progress = Callable[[str, float], None]


def build_version(
    checkpoint: Checkpoint,
    directory: Path,
    *,
    limits: Mapping[str, Any],
    options: Mapping[str, Any],
    progress: Progress,
) -> BuildResult:
    """Write `directory`/model.plan; a GPU is asked for only where the flavour builds on it.

    Weights that the engine `cuda` has on disk are read where they lie; others are written beside
    the plan first, and removed. Raises InvalidModel, Unavailable for what is not installed,
    EngineFailure with TensorRT's reason.
    """
    file = directory / "config.json"
    chosen = read_build_options(options, file)
    kept_limits = _choose_limits(checkpoint.architecture, chosen, limits)
    grid = _grid(kept_limits)
    engine = {"name": "tensorrt", "file": PLAN_FILE, **chosen.kept}
    config: dict[str, Any] = {"engine": engine, "limits": kept_limits}
    version = ModelVersion("", 1, directory, config)
    if problems := list(unservable(version, checkpoint.architecture)):
        raise InvalidModel(problems)
    with _stored(checkpoint, directory, progress) as weights:
        engine["plan"] = _write(weights, directory / PLAN_FILE, chosen, kept_limits, grid, progress)
    if kept_limits["context_length"] >= _WARM_UP_CONTEXT:
        config["warmup"] = [_WARM_UP]
    flavour, held = chosen.flavour, engine["plan"]
    built = (
        f"built by {flavour.title} {held['version']} for {chosen.target} only; "
        f"attention by {'its own layers' if chosen.attention == NATIVE else 'the plugin'}"
    )
    return BuildResult([PLAN_FILE], config, grid.to_json(), [built])


def _choose_limits(
    architecture: Architecture, options: BuildOptions, limits: Mapping[str, Any]
) -> dict[str, Any]:
    usual = _NATIVE if options.attention == NATIVE else _USUAL
    context = min(architecture.context_length, usual["context_length"])
    chosen = {**usual, "context_length": context, "slots": _SLOTS, **limits}
    tokens = min(chosen["max_prefill_tokens"], _SEQUENCES * chosen["context_length"])
    return {**chosen, "max_prefill_tokens": tokens}


def _grid(limits: Mapping[str, Any]) -> GraphGrid:
    """Powers of two: an execution context a key costs more than a graph of the engine `cuda`."""
    return default_grid(
        limits["max_rows"],
        limits["max_prefill_tokens"],
        max_sequences=min(_SEQUENCES, limits["max_rows"]),
        smallest_prefill=_SMALLEST_PREFILL,
    )


@contextmanager
def _stored(checkpoint: Checkpoint, directory: Path, progress: Progress) -> Iterator[Path]:
    """The checkpoint's weights as a file of the engine `cuda`."""
    if isinstance(checkpoint, StoredCheckpoint):
        yield checkpoint.weight_path
        return
    path = directory / WEIGHT_FILE
    try:
        write_weights(checkpoint, path, lambda part: progress("weights", part))
        yield path
    finally:
        path.unlink(missing_ok=True)


def _write(
    weight_path: Path,
    path: Path,
    options: BuildOptions,
    limits: Mapping[str, Any],
    grid: GraphGrid,
    progress: Progress,
) -> dict[str, Any]:
    """Build the plan; its description."""
    from blink_persistent.engines.tensorrt.weights import map_weights

    trt = options.flavour.load()
    architecture, weights = map_weights(weight_path)
    shape = _plan_shape(architecture, options, limits, grid)
    cross = options.flavour.cross_builds
    if cross and options.target not in targets(trt):
        expected = f"must be one of {', '.join(targets(trt))}, which {options.flavour.title} knows"
        file = path.parent / "config.json"
        raise InvalidModel([Problem(file, "engine.target", options.target, expected)])
    logger = message_log(trt)
    with logger.explaining():
        builder = trt.Builder(logger)
        attention = _attention(architecture, options)
        network = build_network(
            trt,
            builder,
            architecture,
            weights,
            shape.pages,
            attention,
            native_experts=options.target in NATIVE_TARGETS,
        )
        size = write_plan(
            trt,
            builder,
            network.network,
            shape,
            path,
            logger=logger,
            target=options.target if cross else None,
            timings=None if cross else _timings(trt, options.target),
            report=lambda part: progress("plan", part),
        )
    description = PlanDescription(
        flavour=options.flavour.name,
        version=trt.__version__,
        target=options.target,
        attention=options.attention,
        aliased=options.aliased,
        dtype=DTYPE,
        layout=LAYOUT,
        block_size=options.block_size,
        max_blocks=shape.pages.max_blocks,
        blocks=shape.blocks,
        decode=shape.decode,
        prefill=shape.prefill,
        grid=grid_hash(grid),
        file_bytes=size,
        architecture=architecture,
    )
    return description.to_json()


def _timings(trt: Any, target: str) -> Path:
    """Where TensorRT's timings of such GPUs are kept, in the user's cache directory."""
    return cache_directory("tensorrt") / f"{trt.__version__}-{target}.timings"


def _plan_shape(
    architecture: Architecture, options: BuildOptions, limits: Mapping[str, Any], grid: GraphGrid
) -> PlanShape:
    blocks = -(-limits["context_length"] // options.block_size)
    return PlanShape(
        architecture=architecture,
        pages=Pages(options.block_size, blocks),
        decode=StepRange(sequences=grid.max_rows, tokens=grid.max_rows),
        prefill=StepRange(sequences=grid.max_sequences, tokens=grid.max_prefill_tokens),
    )


def _attention(
    architecture: Architecture, options: BuildOptions
) -> Callable[[Layers], PagedAttention]:
    if options.attention == NATIVE:
        return NativeAttention
    from blink_persistent.engines.tensorrt.paged_plugin import PluginState
    from blink_persistent.engines.tensorrt.plugin_attention import PluginAttention

    try:
        from blink_persistent.engines.tensorrt import attention_kernels
    except ImportError as error:
        extra = options.flavour.extra
        raise Unavailable(f"install the {extra!r} extra, for Triton: {error}") from error
    capability = capability_of(options.target)
    block_size = options.block_size
    state = PluginState(
        attention_kernels.attention_shape(architecture, block_size, capability),
        tuple(attention_kernels.compile_attention(architecture, block_size, capability)),
        options.aliased,
    )
    return lambda layers: PluginAttention(layers, state, options.plugin)
