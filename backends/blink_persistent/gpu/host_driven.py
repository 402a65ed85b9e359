"""A GPU's graphs driven by a host thread: the control for the persistent scheduler.

The same executable graphs, the same policy (`scheduler.h`), but the ring lies in host memory, and
every step costs a copy of its inputs, a launch, a copy of its tokens and a wait for the stream
(paper section 4.2, figure 3). The thread is native (`port_cuda_host.h`): no Python per step.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from blink_persistent import _native
from blink_persistent.gpu import structs
from blink_persistent.gpu.driver import CudaError, Gpu
from blink_persistent.gpu.engine_buffers import input_bytes, output_bytes, places_of
from blink_persistent.graph_grid import DECODE, PREFILL
from blink_persistent.ring import Command, Condition, Ring
from blink_server.errors import Unavailable

CUDA_VERSION = 12000  # of the functions' signatures
GRAPH_KEY_WORDS = 4
POLL_SECONDS = 50e-6


class HostDrivenScheduler:
    """A scheduler's thread in this process over a ring in its memory; the interface is that of
    `DeviceScheduler`, but that `stop` is for good.

    `engine` is as `allocate_engine` makes it, `graphs` are executable, one a key of the grid.
    `doorbell` is the eventfd that frontends ring, `notify` those of the ranges; whoever gave them
    closes them after `close`. With `polls`, the thread asks for a step's end again and again and
    reads the ring in between; else it synchronizes, as the paper's control does, and the context's
    flags decide whether that spins. Raises CudaError, Unavailable and ValueError.
    """

    def __init__(
        self,
        gpu: Gpu,
        memory: npt.NDArray[np.uint8],
        engine: structs.EngineTables,
        graphs: Sequence[Any],
        *,
        doorbell: int,
        notify: Sequence[int] = (),
        polls: bool = False,
        trace_capacity: int = 0,
    ) -> None:
        self._gpu = gpu
        self._ring = Ring(memory)
        self._started = False
        self._memory = memory
        self._register(memory)
        try:
            self._native = _native.HostDrivenScheduler(
                memory,
                host_tables(gpu, engine),
                driver=driver_addresses(gpu),
                context=int(gpu.call("cuCtxGetCurrent")),
                stream=int(gpu.new_stream()),
                graphs=[int(graph) for graph in graphs],
                device_buffers=[addresses_of(phase) for phase in engine.buffers],
                host_buffers=[
                    addresses_of(pinned_buffers(gpu, engine, phase)) for phase in (DECODE, PREFILL)
                ],
                polls=polls,
                doorbell=doorbell,
                notify=list(notify),
                trace_capacity=trace_capacity,
            )
        except BaseException:
            self._unregister()
            raise

    def launch(self) -> None:
        """Start the thread, or go on after a park. Raises RuntimeError after `stop`."""
        if self._started:
            self._native.command(Command.RUN)
        else:
            self._native.start()
            self._started = True

    def park(self, timeout_s: float = 10.0) -> None:
        """Hold between two steps, keeping its state; returns when it holds.

        Raises TimeoutError where the running step does not end in time, CudaError where the
        scheduler has failed.
        """
        self._native.command(Command.PARK)
        deadline = time.monotonic() + timeout_s
        while self.condition() != Condition.PARKED:
            self.is_idle()
            if time.monotonic() > deadline:
                raise TimeoutError("the scheduler did not park: a step hangs")
            time.sleep(POLL_SECONDS)

    def stop(self) -> None:
        """End the thread between two steps, for good. A step that never ends is waited for."""
        self._native.stop()

    def close(self) -> None:
        """Stop, and let go of the ring's memory."""
        self.stop()
        self._unregister()

    def close_ring(self) -> None:
        """From here on newly claimed submits end with reason CLOSED. Waits for nothing."""
        self._native.close()

    def is_idle(self) -> bool:
        """Does the thread run no more steps? Raises CudaError where a call of the driver failed."""
        condition = self.condition()
        if condition == Condition.FAILED:
            raise CudaError(f"the host-driven scheduler failed: {self.error()}")
        return not self._started or condition in (Condition.PARKED, Condition.STOPPED)

    def condition(self) -> Condition:
        """What the scheduler says of itself."""
        return Condition(self._native.condition())

    def error(self) -> str | None:
        """CUDA's or the engine's name for what went wrong, None where nothing did."""
        number = self._ring.field("error")
        if number == 0:
            return None
        try:
            return str(self._gpu.driver.CUresult(number).name)
        except ValueError:
            return f"error {number}"

    def drain_trace(self) -> list[tuple[int, int, int, int]]:
        """(kind, a, b, c) of every event since the last call; only while parked or stopped."""
        return self._native.drain_trace()

    def _register(self, memory: npt.NDArray[np.uint8]) -> None:
        """Sampling rows point into the ring: the GPU must see it, and under the same address."""
        flags = self._gpu.driver.CU_MEMHOSTREGISTER_DEVICEMAP
        with self._gpu.exclusive():
            self._gpu.call("cuMemHostRegister", memory.ctypes.data, memory.nbytes, flags)
        if int(self._gpu.call("cuMemHostGetDevicePointer", memory.ctypes.data, 0)) != (
            memory.ctypes.data
        ):
            self._unregister()
            raise Unavailable("the GPU sees host memory under another address than the host")

    def _unregister(self) -> None:
        memory, self._memory = self._memory, np.empty(0, np.uint8)
        if memory.nbytes:
            with self._gpu.exclusive():  # it may wait, as freeing pinned memory does
                self._gpu.call("cuMemHostUnregister", memory.ctypes.data)


def host_tables(gpu: Gpu, engine: structs.EngineTables) -> _native.HostEngine:
    """A copy of the engine's tables in host memory."""

    def table(address: int, rows: int, most_tokens: int) -> list[int]:
        entries = rows * -(-most_tokens // engine.token_granularity)
        return gpu.fetch(address, np.uint16, entries).tolist() if entries else []

    keys = gpu.fetch(engine.graphs, np.uint32, GRAPH_KEY_WORDS * engine.graph_count)
    eos = gpu.fetch(engine.eos_token_ids, np.int32, engine.eos_count) if engine.eos_count else None
    return _native.make_engine(
        graphs=[(*key,) for key in keys.reshape(-1, GRAPH_KEY_WORDS).tolist()],
        decode_lookup=gpu.fetch(engine.decode_lookup, np.uint16, engine.max_rows).tolist(),
        prefill_lookup=table(
            engine.prefill_lookup, engine.max_sequences, engine.max_prefill_tokens
        ),
        mixed_lookup=table(engine.mixed_lookup, engine.max_rows, engine.max_mixed_tokens),
        eos_token_ids=[] if eos is None else eos.tolist(),
        max_rows=engine.max_rows,
        max_sequences=engine.max_sequences,
        max_prefill_tokens=engine.max_prefill_tokens,
        token_granularity=engine.token_granularity,
        prefill_chunk=engine.prefill_chunk,
        mixed_sequences=engine.mixed_sequences,
        max_mixed_tokens=engine.max_mixed_tokens,
        context_length=engine.context_length,
        vocabulary_size=engine.vocabulary_size,
        block_size=engine.block_size,
        block_count=engine.block_count,
        max_blocks=engine.max_blocks,
        rows_movable=bool(engine.rows_movable),
        deterministic=bool(engine.deterministic),
    )


def pinned_buffers(gpu: Gpu, engine: structs.EngineTables, phase: int) -> structs.PhaseBuffers:
    """A phase's step buffers in pinned host memory, placed to one another as on the device.

    Raises ValueError where those on the device are not placed as `allocate_engine` places them.
    """
    sequences = engine.max_rows if phase == DECODE else engine.max_sequences
    tokens = engine.max_rows if phase == DECODE else engine.max_prefill_tokens
    device = engine.buffers[phase]
    addresses: dict[str, int] = {}
    for sizes in (input_bytes(sequences, tokens, engine.max_blocks), output_bytes(sequences)):
        offsets, used = places_of(sizes)
        start = getattr(device, next(iter(offsets)))
        if any(getattr(device, name) != start + offset for name, offset in offsets.items()):
            raise ValueError("the engine's step buffers do not lie together")
        memory, _ = gpu.host_memory(used)
        addresses |= {name: memory.ctypes.data + offset for name, offset in offsets.items()}
        for name in ("rows", "cu_seqlens"):
            if name in offsets:
                at = offsets[name]
                counting = memory[at : at + sizes[name]].view(np.int32)
                counting[:] = np.arange(len(counting))
    return structs.PhaseBuffers(**addresses)


def addresses_of(buffers: structs.PhaseBuffers) -> list[int]:
    """The addresses, in the order of the struct's fields."""
    return [int(getattr(buffers, name)) for name, *_ in buffers._fields_]


def driver_addresses(gpu: Gpu) -> list[int]:
    """Addresses of the driver's functions that a step needs. Raises Unavailable by name."""
    found = []
    for name in _native.cuda_calls():
        address, status = gpu.call("cuGetProcAddress", name.encode(), CUDA_VERSION, 0)
        if int(address) == 0:
            raise Unavailable(f"the CUDA driver has no {name}: {status.name}")
        found.append(int(address))
    return found
