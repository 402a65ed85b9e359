"""A version with a plan on a GPU with everything built: what a scheduler there needs of it.

The GPU is the first that CUDA_VISIBLE_DEVICES leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from blink_persistent.engines import ProvisionLimits
from blink_persistent.engines.captured import CapturedEngine
from blink_persistent.engines.kv_memory import memory_budget
from blink_persistent.engines.tensorrt.contexts import Contexts, step_addresses
from blink_persistent.engines.tensorrt.memory import block_bytes, choose_block_count
from blink_persistent.engines.tensorrt.network import pool_names
from blink_persistent.engines.tensorrt.options import TensorRtOptions
from blink_persistent.engines.tensorrt.plan_loader import LoadedPlan, check_machine
from blink_persistent.engines.tensorrt.recorder import StreamRecorder
from blink_persistent.graph_grid import DECODE, PREFILL, GraphGrid, GraphKey
from blink_server.backend import ModelVersion

Progress = Callable[[str, float], None]

_FLOAT_BYTES = 4


class TensorRtProvisioned(CapturedEngine):
    """Fulfils `DeviceProvisioned`."""

    def __init__(
        self,
        version: ModelVersion,
        grid: GraphGrid,
        options: TensorRtOptions,
        limits: ProvisionLimits,
        *,
        progress: Progress,
    ) -> None:
        super().__init__(grid, limits, in_background=options.in_background)
        try:
            self._build(version, options, limits, progress)
            self.on_capture_thread(lambda: self._capture_first(progress))
            self.reset()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give all device memory back; no scheduler may be running on it."""
        self.stop_capturing()
        self.gpu.close()

    def reset(self) -> None:
        """As before the first step: no step completed, and the null block, which is all of KV
        memory that a step without requests writes, zero."""
        one = self.shape.block_size * self._entry_bytes
        for address, size in (
            *((word, _FLOAT_BYTES) for word in self.completion_words()),
            *((pool, one) for pool in self.pools.values()),
        ):
            self.gpu.call("cuMemsetD8Async", address, 0, size, self.gpu.io)
        self.gpu.call("cuStreamSynchronize", self.gpu.io)

    def _build(
        self,
        version: ModelVersion,
        options: TensorRtOptions,
        limits: ProvisionLimits,
        progress: Progress,
    ) -> None:
        gpu, plan, trt = self.gpu, options.plan, options.flavour.load()
        path, model = version.directory / options.file, options.plan.architecture
        check_machine(options, path, trt, gpu.arch)
        budget = memory_budget(version, *gpu.call("cuMemGetInfo"))
        self.loaded = LoadedPlan(options, path, trt, lambda part: progress("weights", part))
        gpu.at_close(self.loaded.close)
        step_bytes = self.loaded.step_bytes
        self.block_count = choose_block_count(options, self.grid, step_bytes, budget)
        self.allocate(
            version,
            vocabulary_size=model.vocabulary_size,
            block_size=plan.block_size,
            block_count=self.block_count,
        )
        self._entry_bytes = block_bytes(options) // plan.block_size // (2 * model.layers)
        one_pool = self.block_count * plan.block_size * self._entry_bytes
        names = [name for layer in range(model.layers) for name in pool_names(layer)]
        self.pools = {name: gpu.allocate(one_pool) for name in names}
        rows = max(self.grid.max_rows, self.grid.max_sequences)
        self.logits = gpu.allocate(_FLOAT_BYTES * rows * model.vocabulary_size)
        buffers = self.tables.buffers
        self.contexts = Contexts(
            trt,
            self.loaded,
            plan,
            block_count=self.block_count,
            step_memory=gpu.allocate(max(1, step_bytes)),
            inputs={phase: step_addresses(buffers[phase]) for phase in (DECODE, PREFILL)},
            pools=self.pools,
            logits=self.logits,
            exclusive=gpu.exclusive,
        )
        gpu.at_close(self.contexts.close)
        self.sampler = limits.sampler.device(gpu, self.tables, self.logits)

    def _capture_first(self, progress: Progress) -> None:
        self.recorder = StreamRecorder(self.gpu, self.loaded.layers)
        self.capture_first(self.recorder, self._step, self._warm_up, progress)

    def _step(self, key: GraphKey) -> Any:
        """Enqueue one step, as it is captured."""
        stream = self.recorder.stream
        self.contexts.enqueue(key, stream)
        self.sampler.record(key.phase, key.sequences, stream)

    def _warm_up(self, key: GraphKey) -> None:
        """TensorRT loads kernels when they are first enqueued, for which others stand still."""
        stream = self.recorder.stream
        self.contexts.of(key, stream)
        with self.gpu.exclusive():
            self.contexts.enqueue(key, stream)
            self.recorder.finish()
        self.sampler.record(key.phase, key.sequences, stream)
