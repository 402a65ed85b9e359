"""A ring in GPU memory, and its copy in host memory that is read and written instead."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

from blink_persistent import _native
from blink_persistent.gpu.driver import Gpu
from blink_persistent.ring import Ring, create_ring_memory

_SHARED_PAGE = 2 << 20


class DeviceRing:
    """`mirror` is a `Ring` over the host's copy; `push` and `pull` move parts of it.

    Copies run on a stream of the ring's own, one after the other, so that what was pushed first is
    there first: push a record and its prompt, then the words that announce them. They do not wait
    for a resident scheduler. One thread at a time.
    """

    def __init__(
        self, gpu: Gpu, shape: _native.RingShape, epoch: int, *, pinned: bool = True
    ) -> None:
        """Without `pinned` the mirror takes only the memory of what is copied, and copies wait; it
        is in a file then, `mirror_file`, which `close` closes."""
        self._gpu = gpu
        # Another process that opens an allocation gets the whole pages that it lies on.
        self.nbytes = -(-shape.total_bytes // _SHARED_PAGE) * _SHARED_PAGE
        self.address = gpu.allocate(self.nbytes)
        self.mirror_file = -1
        if pinned:
            self._memory = gpu.host_memory(shape.total_bytes)[0]
            _native.create_ring(self._memory, shape, epoch)
        else:
            self.mirror_file, memory = create_ring_memory(shape, epoch)
            self._memory = np.frombuffer(memory, np.uint8)
        self._base = self._memory.ctypes.data
        self._stream = gpu.new_stream()
        self.mirror = Ring(self._memory)
        self.push(self.mirror.header)
        self.flush()

    def push(self, view: npt.NDArray[Any]) -> None:
        """Start to copy a contiguous part of the mirror to the device."""
        self._gpu.call(
            "cuMemcpyHtoDAsync", self._place(view), view.ctypes.data, view.nbytes, self._stream
        )

    def pull(self, view: npt.NDArray[Any]) -> None:
        """Copy a contiguous part of the ring to the mirror; returns when it is here."""
        self._gpu.call(
            "cuMemcpyDtoHAsync", view.ctypes.data, self._place(view), view.nbytes, self._stream
        )
        self.flush()

    def flush(self) -> None:
        """Wait until everything pushed is on the device."""
        self._gpu.call("cuStreamSynchronize", self._stream)

    def field(self, name: str) -> int:
        """A header field's present value on the device."""
        self.pull(self.mirror.header)
        return self.mirror.field(name)

    def close(self) -> None:
        """Close the mirror's file; what is on the device is the GPU's to free."""
        if self.mirror_file >= 0:
            os.close(self.mirror_file)
            self.mirror_file = -1

    def _place(self, view: npt.NDArray[Any]) -> int:
        offset = int(view.ctypes.data) - int(self._base)
        if not (view.flags.c_contiguous and 0 <= offset <= self._memory.nbytes - view.nbytes):
            raise ValueError("only contiguous parts of the mirror can be copied")
        return self.address + offset
