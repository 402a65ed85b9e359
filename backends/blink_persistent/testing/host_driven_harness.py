"""The scripted engine's graphs on a GPU, driven by a host thread; used as `DeviceHarness` is."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

from blink_persistent import _native
from blink_persistent.gpu.host_driven import HostDrivenScheduler
from blink_persistent.ring import Ring, create_ring_memory
from blink_persistent.testing.device_harness import DeviceHarness, LaunchableEngine
from blink_persistent.testing.scripted_shape import ScriptedShape

WORDS = ("cancel", "release", "submit")


class SharedRing:
    """A ring in this machine's memory behind the interface of `DeviceRing`: `mirror` is a copy,
    `push` and `pull` move parts of it in the ring's order, `flush` rings the doorbell."""

    def __init__(self, shape: _native.RingShape, epoch: int, doorbell: int) -> None:
        fd, mapping = create_ring_memory(shape, epoch)
        os.close(fd)
        self.memory = np.frombuffer(mapping, np.uint8)
        self._copy = self.memory.copy()
        self._ring, self.mirror = Ring(self.memory), Ring(self._copy)
        self._doorbell = doorbell

    def push(self, view: npt.NDArray[Any]) -> None:
        """Write a contiguous part of the mirror to the ring; of the words, those that are new."""
        if view.dtype != self.mirror.words.dtype:
            self._shared(view)[:] = view.reshape(-1).view(np.uint8)
            return
        for name in WORDS:
            for slot in np.flatnonzero(view[name] != self._ring.words[name]).tolist():
                getattr(self._ring.atomic, name)(slot, int(view[name][slot]))

    def pull(self, view: npt.NDArray[Any]) -> None:
        """Read a contiguous part of the ring to the mirror."""
        if view.dtype == self.mirror.status.dtype:
            self._ring.atomic.read_statuses(0, view.view(np.uint64).reshape(-1, 2))
        else:
            view.reshape(-1).view(np.uint8)[:] = self._shared(view)

    def flush(self) -> None:
        """Wake the scheduler."""
        os.eventfd_write(self._doorbell, 1)

    def field(self, name: str) -> int:
        """A header field's present value."""
        return self._ring.field(name)

    def _shared(self, view: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
        start = int(view.ctypes.data) - int(self._copy.ctypes.data)
        return self.memory[start : start + view.nbytes]


class HostDrivenHarness(DeviceHarness):
    """As `DeviceHarness`; `polls` is `HostDrivenScheduler`'s."""

    def __init__(self, shape: ScriptedShape, *, polls: bool = False, **options: Any) -> None:
        self._polls = polls
        super().__init__(shape, **options)

    def _make_scheduler(
        self, engine: LaunchableEngine, trace_capacity: int, profile_capacity: int
    ) -> None:
        if profile_capacity:
            raise ValueError("a host-driven scheduler keeps no profile")
        self._doorbell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        ring = SharedRing(self.shape.ring(), self.shape.epoch, self._doorbell)
        self.ring = ring
        self.host_driven = HostDrivenScheduler(
            self.gpu,
            ring.memory,
            engine.tables,
            engine.graphs,
            doorbell=self._doorbell,
            polls=self._polls,
            trace_capacity=trace_capacity,
        )
        self.scheduler = self.host_driven

    def close(self) -> None:
        """Stop the scheduler and free everything. Steps that wait at the gate are let go."""
        self.engine.allow(0xFFFFFFFF)
        try:
            self.host_driven.close()
        finally:
            self.gpu.close()
            os.close(self._doorbell)
