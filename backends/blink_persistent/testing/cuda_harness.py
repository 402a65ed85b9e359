"""The engine `cuda` and the persistent scheduler on a GPU, with a frontend's view of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blink_persistent.engines import ProvisionLimits
from blink_persistent.engines.cuda.engine import CudaEngine
from blink_persistent.gpu.device_scheduler import DeviceScheduler
from blink_persistent.graph_grid import GraphGrid
from blink_persistent.samplers.default import DefaultSampler
from blink_persistent.testing.device_harness import DeviceHarness
from blink_persistent.testing.host_driven_harness import HostDrivenHarness
from blink_persistent.testing.scripted_shape import ScriptedShape
from blink_server.backend import ModelVersion

if TYPE_CHECKING:
    from blink_persistent.engines.cuda.provisioned import CudaProvisioned

Exclusive = Callable[[], AbstractContextManager[None]]


def cuda_version(
    directory: Path,
    *,
    engine: Mapping[str, Any],
    context_length: int,
    eos_token_ids: Sequence[int] = (),
    memory_fraction: float = 0.9,
    prefill_chunk: int | None = None,
) -> ModelVersion:
    """A version of the engine `cuda`; `engine` are its options, the rest its limits."""
    limits = {"context_length": context_length, "memory_fraction": memory_fraction}
    if prefill_chunk is not None:
        limits["prefill_chunk"] = prefill_chunk
    config = {
        "engine": {"name": "cuda", **engine},
        "limits": limits,
        "eos_token_ids": list(eos_token_ids),
    }
    return ModelVersion("model", 1, directory, config)


def provision(
    version: ModelVersion, grid: GraphGrid, *, exclusive: Exclusive = nullcontext
) -> CudaProvisioned:
    """The version on the GPU, with the default sampler."""
    limits = ProvisionLimits(threads=1, sampler=DefaultSampler(), exclusive=exclusive)
    return CudaEngine().provision(version, grid, limits, progress=lambda stage, part: None)


class CudaHarness(DeviceHarness):
    """A `DeviceHarness` around a provisioned engine, which it closes unless `borrowed`.

    `shape` tells the ring's sizes, of which only those before the engine are used. Requests are
    `ScriptedRequest`s; their answers are the model's.
    """

    def __init__(
        self,
        shape: ScriptedShape,
        engine: CudaProvisioned,
        *,
        profile_capacity: int = 0,
        borrowed: bool = False,
    ) -> None:
        self.shape, self.gpu, self._provisioned = shape, engine.gpu, engine
        self._borrowed = borrowed
        self._make_scheduler(engine, 0, profile_capacity)

    def complete(self) -> Future[None]:
        """Have the engine capture what is missing, for the scheduler on the device."""
        assert isinstance(self.scheduler, DeviceScheduler)
        return self._provisioned.complete(self.scheduler.publish)

    def close(self) -> None:
        """Stop the scheduler and give the engine's memory back."""
        try:
            self.scheduler.stop()
        finally:
            if not self._borrowed:
                self._provisioned.close()


class HostDrivenCudaHarness(CudaHarness, HostDrivenHarness):
    """The same graphs, driven by a host thread; `polls` is `HostDrivenScheduler`'s."""

    def __init__(
        self,
        shape: ScriptedShape,
        engine: CudaProvisioned,
        *,
        polls: bool = False,
        borrowed: bool = False,
    ) -> None:
        self._polls = polls
        super().__init__(shape, engine, borrowed=borrowed)

    def close(self) -> None:
        """Stop the scheduler and give the engine's memory back."""
        try:
            self.host_driven.close()
        finally:
            os.close(self._doorbell)
            if not self._borrowed:
                self._provisioned.close()
