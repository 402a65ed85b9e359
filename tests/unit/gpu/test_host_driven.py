"""The host-driven scheduler over a driver of this test's own: the native module's side of it.

Its device memory is this process's, its graphs are Python functions, and its stream does nothing
before it is waited for.
"""

from __future__ import annotations

import ctypes
import os
import select
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import c_int, c_size_t, c_uint64
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from blink_persistent.gpu import structs
from blink_persistent.gpu.driver import CudaError
from blink_persistent.gpu.engine_buffers import EngineLimits, allocate_engine
from blink_persistent.gpu.host_driven import HostDrivenScheduler, pinned_buffers
from blink_persistent.graph_grid import DECODE
from blink_persistent.ring import Condition, Reason, SlotState
from blink_persistent.testing.host_driven_harness import SharedRing
from blink_persistent.testing.scripted_request import ScriptedRequest
from blink_persistent.testing.scripted_shape import ScriptedShape
from blink_server.errors import Unavailable

SHAPE = ScriptedShape(max_rows=2, max_sequences=1)
PROMPT = (5, 6, 7)
FAILURE = 719
PATIENCE_MS = 10_000
STREAM, CONTEXT, FIRST_GRAPH = 11, 12, 100
SIGNATURES = {
    "cuCtxSetCurrent": (c_uint64,),
    "cuMemcpyHtoDAsync": (c_uint64, c_uint64, c_size_t, c_uint64),
    "cuMemcpyDtoHAsync": (c_uint64, c_uint64, c_size_t, c_uint64),
    "cuGraphLaunch": (c_uint64, c_uint64),
    "cuStreamQuery": (c_uint64,),
    "cuStreamSynchronize": (c_uint64,),
}


class FakeGpu:
    """What host_driven.py and engine_buffers.py use of a `Gpu`."""

    def __init__(self) -> None:
        self.driver = SimpleNamespace(
            CU_MEMHOSTREGISTER_DEVICEMAP=2,
            CUresult=lambda number: SimpleNamespace(name=f"CUDA_ERROR_{number}"),
        )
        self.calls: list[str] = []
        self.failing = ""
        self.missing = ""
        self.registered: list[int] = []
        self.slices: list[list[str]] = []
        self._slice: list[str] | None = None
        self.tables = structs.EngineTables()
        self._memory: list[Any] = []
        self._queue: list[Callable[[], object]] = []
        self._functions = {
            name: ctypes.CFUNCTYPE(c_int, *kinds)(lambda *a, name=name: self._called(name, *a))
            for name, kinds in SIGNATURES.items()
        }

    def allocate(self, nbytes: int) -> int:
        self._memory.append(np.zeros(nbytes, np.uint8))
        return int(self._memory[-1].ctypes.data)

    def host_memory(self, nbytes: int) -> tuple[Any, int]:
        address = self.allocate(nbytes)
        return self._memory[-1], address

    def put(self, address: int, value: Any) -> None:
        ctypes.memmove(address, value.ctypes.data, value.nbytes)

    def place(self, value: Any) -> int:
        address = self.allocate(value.nbytes)
        self.put(address, value)
        return address

    def fetch(self, address: int, dtype: Any, count: int) -> Any:
        values = np.empty(count, dtype)
        ctypes.memmove(values.ctypes.data, address, values.nbytes)
        return values

    def new_stream(self) -> int:
        return STREAM

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        self._slice = []
        self.slices.append(self._slice)
        try:
            yield
        finally:
            self._slice = None

    def call(self, function: str, *arguments: Any) -> Any:
        if self._slice is not None:
            self._slice.append(function)
        match function:
            case "cuCtxGetCurrent":
                return CONTEXT
            case "cuMemHostRegister":
                self.registered.append(arguments[0])
            case "cuMemHostUnregister":
                self.registered.remove(arguments[0])
            case "cuMemHostGetDevicePointer":
                return arguments[0]
            case "cuGetProcAddress":
                name = arguments[0].decode()
                if name == self.missing:
                    return 0, SimpleNamespace(name="SYMBOL_NOT_FOUND")
                address = ctypes.cast(self._functions[name], ctypes.c_void_p).value
                return address, SimpleNamespace(name="SUCCESS")

    def _called(self, name: str, *arguments: int) -> int:
        """What the native thread calls; 0 or an error."""
        assert arguments[-1] == (CONTEXT if name == "cuCtxSetCurrent" else STREAM)
        self.calls.append(name)
        if name == self.failing:
            return FAILURE
        if name.startswith("cuMemcpy"):
            self._queue.append(lambda: ctypes.memmove(*arguments[:3]))
        elif name == "cuGraphLaunch":
            self._queue.append(lambda: self._run(arguments[0] - FIRST_GRAPH))
        elif name.startswith("cuStream"):
            while self._queue:
                self._queue.pop(0)()
        return 0

    def _run(self, graph: int) -> None:
        """A step: every sequence's token is ten times its length."""
        key = SHAPE.grid.keys[graph]
        buffers = self.tables.buffers[key.phase]
        tokens = 10 * self.fetch(buffers.lengths, np.int32, key.sequences)
        self.put(buffers.output_tokens, tokens)


class Rig:
    """A ring, a scheduler on the fake driver, one request."""

    def __init__(self, polls: bool = False) -> None:
        self.gpu = FakeGpu()
        limits = EngineLimits(
            context_length=SHAPE.context_length,
            vocabulary_size=SHAPE.vocabulary_size,
            block_size=SHAPE.block_size,
            block_count=SHAPE.block_count,
            eos_token_ids=(SHAPE.eos_token_id,),
            token_granularity=SHAPE.token_granularity,
        )
        self.gpu.tables = allocate_engine(self.gpu, SHAPE.grid, limits)  # type: ignore[arg-type]
        self.doorbell, self.news = os.eventfd(0, os.EFD_NONBLOCK), os.eventfd(0, os.EFD_NONBLOCK)
        self.ring = SharedRing(SHAPE.ring(), SHAPE.epoch, self.doorbell)
        self.polls = polls
        self.scheduler: HostDrivenScheduler | None = None

    def make(self) -> HostDrivenScheduler:
        graphs = [FIRST_GRAPH + i for i in range(len(SHAPE.grid.keys))]
        self.scheduler = HostDrivenScheduler(
            self.gpu,  # type: ignore[arg-type]
            self.ring.memory,
            self.gpu.tables,
            graphs,
            doorbell=self.doorbell,
            notify=[self.news],
            polls=self.polls,
        )
        return self.scheduler

    def submit(self, max_tokens: int) -> None:
        mirror = self.ring.mirror
        mirror.prompts[0][: len(PROMPT)] = PROMPT
        request = ScriptedRequest(PROMPT, max_tokens=max_tokens)
        for name, value in request.record_fields().items():
            mirror.records[name][0] = value
        self.ring.push(mirror.prompts)
        self.ring.push(mirror.records)
        mirror.words["submit"][0] = 1
        self.ring.push(mirror.words)
        self.ring.flush()

    def wait_for_end(self) -> tuple[Reason, list[int]]:
        """The request's reason and tokens, once it is completed."""
        poll = select.poll()
        poll.register(self.news, select.POLLIN)
        while poll.poll(PATIENCE_MS):
            os.eventfd_read(self.news)
            self.ring.pull(self.ring.mirror.status)
            word = int(self.ring.mirror.status["word"][0])
            if word >> 32 & 0xFF == SlotState.DECODE_COMPLETED:
                tokens = self.ring.mirror.outputs[0][: word & 0xFFFFFFFF]
                self.ring.pull(tokens)
                return Reason(word >> 40 & 0xFF), tokens.tolist()
        raise TimeoutError("the request does not end")

    def close(self) -> None:
        if self.scheduler is not None:
            self.scheduler.close()
        os.close(self.doorbell)
        os.close(self.news)


@pytest.fixture(params=[False, True], ids=["synchronizes", "polls"])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    made = Rig(polls=request.param)
    yield made
    made.close()


def test_a_request_is_served_by_copy_launch_copy_wait(rig: Rig) -> None:
    scheduler = rig.make()
    rig.submit(max_tokens=4)
    scheduler.launch()
    assert rig.wait_for_end() == (Reason.MAX_TOKENS, [30, 40, 50, 60])
    scheduler.stop()
    assert scheduler.condition() == Condition.STOPPED
    assert scheduler.error() is None
    wait = "cuStreamQuery" if rig.polls else "cuStreamSynchronize"
    step = ["cuMemcpyHtoDAsync", "cuGraphLaunch", "cuMemcpyDtoHAsync", wait]
    assert rig.gpu.calls == ["cuCtxSetCurrent", *(4 * step)]


def test_it_parks_and_goes_on(rig: Rig) -> None:
    scheduler = rig.make()
    assert scheduler.is_idle()
    scheduler.launch()
    scheduler.park()
    assert scheduler.is_idle()
    rig.submit(max_tokens=2)
    assert rig.gpu.calls == ["cuCtxSetCurrent"]
    scheduler.launch()
    assert rig.wait_for_end() == (Reason.MAX_TOKENS, [30, 40])
    scheduler.close_ring()


def test_a_failing_call_is_named(rig: Rig) -> None:
    scheduler = rig.make()
    rig.gpu.failing = "cuGraphLaunch"
    rig.submit(max_tokens=2)
    scheduler.launch()
    assert rig.wait_for_end() == (Reason.ENGINE_ERROR, [])
    with pytest.raises(CudaError, match=f"CUDA_ERROR_{FAILURE}"):
        scheduler.park()


def test_a_driver_without_a_function_is_refused_and_the_ring_let_go(rig: Rig) -> None:
    rig.gpu.missing = "cuGraphLaunch"
    with pytest.raises(Unavailable, match="no cuGraphLaunch: SYMBOL_NOT_FOUND"):
        rig.make()
    assert rig.gpu.registered == []


def test_the_ring_is_registered_while_it_serves(rig: Rig) -> None:
    scheduler = rig.make()
    assert rig.gpu.registered == [rig.ring.memory.ctypes.data]
    scheduler.close()
    assert rig.gpu.registered == []
    # Each may wait for the schedulers that reside on the GPU.
    assert rig.gpu.slices == [["cuMemHostRegister"], ["cuMemHostUnregister"]]


def test_scattered_step_buffers_are_refused(rig: Rig) -> None:
    rig.gpu.tables.buffers[DECODE].lengths += 256
    with pytest.raises(ValueError, match="do not lie together"):
        pinned_buffers(rig.gpu, rig.gpu.tables, DECODE)  # type: ignore[arg-type]
