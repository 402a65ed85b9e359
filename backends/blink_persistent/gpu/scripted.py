"""The scripted engine as device graphs, one a key of its grid."""

from __future__ import annotations

from ctypes import c_uint32, c_uint64, sizeof
from typing import Any

import numpy as np
import numpy.typing as npt

from blink_persistent.gpu import structs
from blink_persistent.gpu.driver import Gpu
from blink_persistent.gpu.engine_buffers import EngineLimits, allocate_engine
from blink_persistent.gpu.graphs import device_graph
from blink_persistent.graph_grid import DECODE, GraphGrid, GraphKey

WARP = 32


class DeviceScriptedEngine:
    """Deterministic tokens from the host's rule, in the least time `step_ns` a step.

    With `gated`, a step ends only once `allow` has let it; `allow` makes no CUDA call. `tables` is
    what a scheduler needs, `graphs` the executable graphs in the order of the grid's keys,
    `graph_bytes` the device memory that they took together. `filler_kernels` makes graphs as
    long as a model's.
    """

    def __init__(
        self,
        gpu: Gpu,
        grid: GraphGrid,
        limits: EngineLimits,
        *,
        eos_every: int = 0,
        poison_token: int = -1,
        step_ns: int = 0,
        gated: bool = False,
        times_capacity: int = 0,
        filler_kernels: int = 0,
    ) -> None:
        self._gpu = gpu
        self.tables = allocate_engine(gpu, grid, limits)
        program = gpu.load("scripted_gpu.cu", structs.SCRIPTED_STRUCTS)
        self._step = program.function("blink_scripted_step")
        self._end = program.function("blink_scripted_end")
        self._filler = program.function("blink_scripted_filler")
        self._filler_kernels = filler_kernels
        gate, gate_address = gpu.host_memory(4)
        self._gate = gate.view(np.uint32)
        slabs = limits.block_count if limits.rows_movable else grid.max_rows
        self._parameters = structs.ScriptedGpu(
            engine=self.tables,
            rule=structs.ScriptedRule(limits.vocabulary_size, limits.eos_token_ids[0], eos_every),
            poison_token=poison_token,
            kv=gpu.place(np.full(slabs * limits.block_size, -1, np.int32)),
            step_ns=step_ns,
            gate=gate_address if gated else 0,
            times=gpu.allocate(16 * times_capacity) if times_capacity else 0,
            times_capacity=times_capacity,
        )
        self._address = gpu.place(self._parameters)
        free = gpu.free_bytes()
        self.graphs = [self._graph_of(key) for key in grid.keys]
        self.graph_bytes = free - gpu.free_bytes()

    def allow(self, steps: int) -> None:
        """Let the first `steps` steps end."""
        self._gate[0] = steps

    def set_step_ns(self, step_ns: int) -> None:
        """Set the least time of a step; only while no step runs."""
        now = self._state()
        now.step_ns = step_ns
        self._gpu.put(self._address, now)

    def steps(self) -> int:
        """Steps that have ended."""
        return int(self._state().steps)

    def times(self) -> npt.NDArray[np.uint64]:
        """[n, 2]: (begun, ended) in ns of the last steps, oldest first; while no step runs."""
        now = self._state()
        kept = self._gpu.fetch(now.times, np.uint64, 2 * now.times_capacity).reshape(-1, 2)
        if now.steps <= now.times_capacity:
            return kept[: now.steps]
        return np.roll(kept, -(now.steps % now.times_capacity), axis=0)

    def _state(self) -> structs.ScriptedGpu:
        size = sizeof(structs.ScriptedGpu)
        fetched = self._gpu.fetch(self._address, np.uint8, size)
        return structs.ScriptedGpu.from_buffer_copy(fetched.tobytes())

    def _graph_of(self, key: GraphKey) -> Any:
        engine = self._address, c_uint64
        rows = sum(part.sequences for part in key.parts if part.phase == DECODE)
        blocks = sum(part.sequences for part in key.parts)

        def record(stream: Any) -> None:
            self._gpu.launch(self._step, blocks, WARP, stream, engine, (rows, c_uint32))
            for _ in range(self._filler_kernels):
                self._gpu.launch(self._filler, 1, WARP, stream)
            self._gpu.launch(self._end, 1, 1, stream, engine, (key.phase, c_uint32))

        return device_graph(self._gpu, record)
