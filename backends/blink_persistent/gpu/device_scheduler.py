"""The persistent scheduler on a GPU, as its host sees it: launch, park, stop, read.

The host's words to the scheduler lie in mapped host memory and are written without any CUDA call:
a call that waits for the resident kernel may hold the context's lock just then.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from ctypes import c_uint32, c_uint64, sizeof
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from blink_persistent.gpu import structs
from blink_persistent.gpu.device_ring import DeviceRing
from blink_persistent.gpu.driver import CudaError, Gpu, prefer_shared_memory
from blink_persistent.gpu.graphs import device_graph
from blink_persistent.ring import Command, Condition


class Moment(IntEnum):
    """What a profile tells apart (scheduler.h, port_gpu.cuh)."""

    LANDED = 0
    DELIVERED = 1
    DECIDED = 2
    FILLED = 3
    LAUNCHED = 4
    SCANNING = 5
    SCANNED = 6
    RELAUNCHING = 100
    STARTED = 101


LANES = 256  # of the scheduler's one thread block (port_gpu.cuh)
TRACE_EVENT_WORDS = 4
POLL_SECONDS = 50e-6


class DeviceScheduler:
    """A scheduler over a ring in the same GPU's memory. Its state survives parks and stops.

    `engine` and `graphs` (executable, uploaded for device launch, one a key of the grid) must
    stay as they are while it runs; while it is parked or stopped, the caller may load, free and
    destroy. `trace_capacity` events and `profile_capacity` moments are kept, 0 for none.
    """

    def __init__(
        self,
        gpu: Gpu,
        ring: DeviceRing,
        engine: structs.EngineTables,
        graphs: Sequence[Any],
        *,
        trace_capacity: int = 0,
        profile_capacity: int = 0,
    ) -> None:
        if len(graphs) != engine.graph_count:
            raise ValueError(f"{engine.graph_count} graphs are needed, one a key: {len(graphs)}")
        self._gpu = gpu
        self.ring = ring
        program = gpu.load("scheduler_gpu.cu", structs.SCHEDULER_STRUCTS)
        control, control_address = gpu.host_memory(sizeof(structs.ControlWords))
        self._control = structs.ControlWords.from_buffer(control.data)
        self._profile_address = self._new_profile(profile_capacity)
        self._parameters = structs.GpuScheduler(
            ring=ring.address,
            engine=engine,
            state=0,
            control=control_address,
            graphs=gpu.place(np.array([int(graph) for graph in graphs], np.uint64)),
            profile=self._profile_address,
        )
        self._address = gpu.place(self._parameters)
        initialize = program.function("blink_initialize_state")
        self._addresses = self._make_state(initialize, trace_capacity)
        kernel = program.function("blink_scheduler")
        prefer_shared_memory(gpu, kernel)  # kernels of steps may have to stand beside it
        self._graph = device_graph(
            gpu, lambda stream: gpu.launch(kernel, 1, LANES, stream, (self._address, c_uint64))
        )
        self._stream = gpu.new_stream()

    def launch(self) -> None:
        """Start it, or go on after a park or stop. Returns once it is under way to the GPU.

        Raises CudaError where it runs already.
        """
        if not self.is_idle():
            raise CudaError("the scheduler runs already")
        self._control.command = Command.RUN
        self._gpu.call("cuGraphLaunch", self._graph, self._stream)

    def ask_to_park(self) -> None:
        """Have it stop between two steps, as `park` does; waits for nothing."""
        self._control.command = Command.PARK

    def park(self, timeout_s: float = 10.0) -> None:
        """Stop it between two steps, keeping its state; returns when its kernel has ended.

        Raises TimeoutError where the running step does not end in time.
        """
        self._ask(Command.PARK, timeout_s)

    def stop(self, timeout_s: float = 10.0) -> None:
        """As `park`, but for good; a later `launch` goes on all the same."""
        self._ask(Command.STOP, timeout_s)

    def close_ring(self) -> None:
        """From here on newly claimed submits end with reason CLOSED. Waits for nothing."""
        self._control.close = 1

    def publish(self, graph: int, executable: Any) -> None:
        """Have this graph be that executable from now on, also while the scheduler runs.

        Returns once the scheduler finds it, so that lookup tables may name the graph then. May be
        called from another thread of the GPU's. Raises CudaError.
        """
        word = np.array([int(executable)], np.uint64)
        self._gpu.put(self._parameters.graphs + word.itemsize * graph, word)

    def is_idle(self) -> bool:
        """Does no kernel of the scheduler run? Raises CudaError where one has died."""
        driver = self._gpu.driver
        (status,) = driver.cuStreamQuery(self._stream)
        if status == driver.CUresult.CUDA_ERROR_NOT_READY:
            return False
        if status != driver.CUresult.CUDA_SUCCESS:
            raise CudaError(f"the scheduler's kernel died: {status.name}")
        return True

    def condition(self) -> Condition:
        """What the scheduler says of itself."""
        return Condition(self.ring.field("condition"))

    def error(self) -> str | None:
        """CUDA's or the engine's name for what went wrong, None where nothing did."""
        number = self.ring.field("error")
        return None if number == 0 else self._error_name(number)

    def drain_trace(self) -> list[tuple[int, int, int, int]]:
        """(kind, a, b, c) of every event since the last call; only while parked or stopped."""
        count = int(self._gpu.fetch(self._addresses.trace_count, np.uint32, 1)[0])
        words = self._gpu.fetch(self._addresses.trace, np.uint32, TRACE_EVENT_WORDS * count)
        self._gpu.put(self._addresses.trace_count, np.zeros(1, np.uint32))
        return [(*event,) for event in words.reshape(-1, TRACE_EVENT_WORDS).tolist()]

    def drain_profile(self) -> npt.NDArray[np.int64]:
        """[n, 2]: (moment, ns) in the order they came, since the last call; only while parked."""
        profile = structs.Profile.from_buffer_copy(
            self._gpu.fetch(self._profile_address, np.uint8, sizeof(structs.Profile)).tobytes()
        )
        events = self._gpu.fetch(profile.events, np.uint64, profile.count)
        profile.count = 0
        self._gpu.put(self._profile_address, profile)
        return np.stack([events & 0xFF, events >> 8], axis=1).astype(np.int64)

    def _ask(self, command: Command, timeout_s: float) -> None:
        self._control.command = command
        deadline = time.monotonic() + timeout_s
        while not self.is_idle():
            if time.monotonic() > deadline:
                raise TimeoutError(f"the scheduler did not {command.name.lower()}: a step hangs")
            time.sleep(POLL_SECONDS)

    def _make_state(self, initialize: Any, trace_capacity: int) -> structs.StateAddresses:
        """Asks the device how much memory the state takes, then has it laid out there."""
        found = self._gpu.allocate(sizeof(structs.StateAddresses))
        for _ in range(2):
            arguments = (self._address, c_uint64), (trace_capacity, c_uint32), (found, c_uint64)
            self._gpu.launch(initialize, 1, 1, self._gpu.io, *arguments)
            addresses = structs.StateAddresses.from_buffer_copy(
                self._gpu.fetch(found, np.uint8, sizeof(structs.StateAddresses)).tobytes()
            )
            if self._parameters.state == 0:
                self._parameters.state = self._gpu.allocate(addresses.bytes)
                self._gpu.put(self._address, self._parameters)
        return addresses

    def _new_profile(self, capacity: int) -> int:
        if capacity == 0:
            return 0
        events = self._gpu.allocate(8 * capacity)
        return self._gpu.place(structs.Profile(events=events, capacity=capacity, count=0))

    def _error_name(self, number: int) -> str:
        try:
            return str(self._gpu.driver.CUresult(number).name)
        except ValueError:
            return f"error {number}"
