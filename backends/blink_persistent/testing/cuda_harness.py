"""The engine `cuda` and the persistent scheduler on a GPU, with a frontend's view of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from blink_persistent.engines import ProvisionLimits
from blink_persistent.engines.cuda.engine import CudaEngine
from blink_persistent.engines.cuda.provisioned import CudaProvisioned
from blink_persistent.gpu.device_ring import DeviceRing
from blink_persistent.gpu.device_scheduler import DeviceScheduler
from blink_persistent.graph_grid import GraphGrid
from blink_persistent.samplers.default import DefaultSampler
from blink_persistent.testing.device_harness import DeviceHarness
from blink_persistent.testing.scripted_shape import ScriptedShape
from blink_server.backend import ModelVersion


def cuda_version(
    directory: Path,
    *,
    engine: Mapping[str, Any],
    context_length: int,
    eos_token_ids: Sequence[int] = (),
    memory_fraction: float = 0.9,
) -> ModelVersion:
    """A version of the engine `cuda`; `engine` are its options."""
    limits = {"context_length": context_length, "memory_fraction": memory_fraction}
    config = {
        "engine": {"name": "cuda", **engine},
        "limits": limits,
        "eos_token_ids": list(eos_token_ids),
    }
    return ModelVersion("model", 1, directory, config)


def provision(version: ModelVersion, grid: GraphGrid) -> CudaProvisioned:
    """The version on the GPU, with the default sampler."""
    limits = ProvisionLimits(threads=1, sampler=DefaultSampler())
    return CudaEngine().provision(version, grid, limits, progress=lambda stage, part: None)


class CudaHarness(DeviceHarness):
    """A `DeviceHarness` around a provisioned engine, which it owns.

    `shape` tells the ring's sizes, of which only those before the engine are used. Requests are
    `ScriptedRequest`s; their answers are the model's.
    """

    def __init__(
        self, shape: ScriptedShape, engine: CudaProvisioned, *, profile_capacity: int = 0
    ) -> None:
        self.shape, self.gpu, self._provisioned = shape, engine.gpu, engine
        self.ring = DeviceRing(engine.gpu, shape.ring(), shape.epoch)
        self.scheduler = DeviceScheduler(
            engine.gpu, self.ring, engine.tables, engine.graphs, profile_capacity=profile_capacity
        )

    def close(self) -> None:
        """Stop the scheduler and give the engine's memory back."""
        try:
            self.scheduler.stop()
        finally:
            self._provisioned.close()
