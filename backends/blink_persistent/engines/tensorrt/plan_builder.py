"""From a network to a plan: the builder's settings, its profiles, its timing cache."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from blink_persistent.engines.tensorrt.build_progress import build_progress
from blink_persistent.engines.tensorrt.network import Pages, pool_names
from blink_persistent.engines.tensorrt.plan_description import StepRange
from blink_persistent.engines.tensorrt.trt_types import (
    Builder,
    BuilderConfig,
    Network,
    Profile,
    Trt,
)
from blink_persistent.gpu.compile import write_whole
from blink_server.errors import EngineFailure
from blink_server.importers.checkpoint import Architecture

_MOST_ELEMENTS = 2**31 - 1  # of a tensor
_LEAST_CAPABILITY = 80  # that has bfloat16


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanShape:
    """What a plan must hold: KV pages, at most `blocks` of them, and the steps of both phases."""

    architecture: Architecture
    pages: Pages
    decode: StepRange
    prefill: StepRange

    @property
    def blocks(self) -> int:
        """The most blocks of KV memory that a pool can have."""
        one = self.architecture.kv_heads * self.pages.block_size * self.architecture.head_dim
        return _MOST_ELEMENTS // one


DECODE_PROFILE, PREFILL_PROFILE = 0, 1


def write_plan(
    trt: Trt,
    builder: Builder,
    network: Network,
    shape: PlanShape,
    path: Path,
    *,
    logger: Any,
    target: str | None,
    timings: Path | None,
    report: Callable[[float], None],
) -> int:
    """Build `network`, and write the plan to `path` as it comes; its bytes.

    `target`: "sm_89" where the flavour builds for other GPUs than this machine's. `timings`: where
    what is timed on this machine's is kept for the next build. Raises EngineFailure with TensorRT's
    reason, what `report` raises, OSError.
    """
    config = builder.create_builder_config()
    config.max_aux_streams = 0  # a captured step is one stream's
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED  # tells layers by their kernels
    if hasattr(trt.PreviewFeature, "ALIASED_PLUGIN_IO_10_03"):
        config.set_preview_feature(trt.PreviewFeature.ALIASED_PLUGIN_IO_10_03, True)
    if target is not None:
        _set_target(trt, config, target)
    for steps in (shape.decode, shape.prefill):
        config.add_optimization_profile(_profile(builder, shape, steps))
    config.progress_monitor = monitor = build_progress(trt, report)
    timed = timings_kept(config, timings) if timings is not None else nullcontext()
    with timed, path.open("wb") as file:
        writer = _writer_class(trt)(file)
        built = builder.build_serialized_network_to_stream(network, config, writer)
    for error in (monitor.error, writer.error):
        if error is not None:
            raise error
    if not built:
        raise EngineFailure(f"TensorRT could not build the plan: {logger.explanation()}")
    return path.stat().st_size


def targets(rtx: Any) -> list[str]:
    """What `write_plan` takes for `target`, of TensorRT for RTX: what computes in bfloat16."""
    names = (re.fullmatch(r"SM(\d+)", name) for name in rtx.ComputeCapability.__members__)
    return [f"sm_{name[1]}" for name in names if name and int(name[1]) >= _LEAST_CAPABILITY]


def _set_target(rtx: Any, config: Any, target: str) -> None:
    config.num_compute_capabilities = 1
    capability = rtx.ComputeCapability.__members__[f"SM{target.removeprefix('sm_')}"]
    if not config.set_compute_capability(capability, 0):
        raise EngineFailure(f"TensorRT does not build for {target}")


def _profile(builder: Builder, shape: PlanShape, steps: StepRange) -> Profile:
    """From one row or sequence with one token up to all of them."""
    profile, pages = builder.create_optimization_profile(), shape.pages
    usual = StepRange(sequences=max(1, steps.sequences // 2), tokens=max(1, steps.tokens // 2))
    sizes = (StepRange(sequences=1, tokens=1), usual, steps)

    def bound(name: str, shape_of: Callable[[StepRange], tuple[int, ...]]) -> None:
        profile.set_shape(name, *(shape_of(size) for size in sizes))

    bound("token_ids", lambda size: (size.tokens,))
    for name in ("start_positions", "lengths"):
        bound(name, lambda size: (size.sequences,))
    bound("cu_seqlens", lambda size: (size.sequences + 1,))
    bound("block_tables", lambda size: (size.sequences, pages.max_blocks))
    kv_heads, head_dim = shape.architecture.kv_heads, shape.architecture.head_dim
    pools = [
        (blocks, kv_heads, pages.block_size, head_dim)
        for blocks in (2, 1 + pages.max_blocks, shape.blocks)
    ]
    for layer in range(shape.architecture.layers):
        for name in pool_names(layer):
            profile.set_shape(name, *pools)
    return profile


@contextmanager
def timings_kept(config: BuilderConfig, path: Path) -> Iterator[None]:
    """Use what earlier builds measured, and keep what this one did, also where it fails."""
    timings = config.create_timing_cache(path.read_bytes() if path.is_file() else b"")
    if timings is not None:  # another machine's are refused
        config.set_timing_cache(timings, False)
    try:
        yield
    finally:
        if (measured := config.get_timing_cache()) is not None:
            data: Any = measured.serialize()  # a buffer
            write_whole(path, bytes(data))


class _PlanWriter:
    """The method of an `IStreamWriter`."""

    trt: Any

    def __init__(self, file: BinaryIO) -> None:
        self.trt.IStreamWriter.__init__(self)
        self._file = file
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = error
            return 0


def _writer_class(trt: Any) -> Any:
    return type("Writer", (_PlanWriter, trt.IStreamWriter), {"trt": trt})
