"""The few calls of CUDA that a ring in GPU memory needs, on memory of the host's."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from blink_persistent.gpu.device_ring import DeviceRing
from blink_persistent.testing.scripted_harness import ScriptedHarness

DMA_BUF, ORDERING = "dma-buf", "ordering"


class MemoryGpu:
    """Stands for a `Gpu` with one allocation, which is a file of memory.

    A `DeviceRing` made with it lies there; over a `ScriptedHarness`'s ring its scheduler runs on
    the CPU. `attributes` are the device's; `on_push` is called before bytes are copied to it,
    `on_pull` after some were copied from it.
    """

    driver: Any = SimpleNamespace(
        CUdevice_attribute=SimpleNamespace(
            CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED=DMA_BUF,
            CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING=ORDERING,
        ),
        CUGPUDirectRDMAWritesOrdering=SimpleNamespace(CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER=100),
        CUmemRangeHandleType=SimpleNamespace(CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD=1),
    )

    def __init__(self, file: int) -> None:
        self._file = file
        self._memory = np.frombuffer(mmap.mmap(file, 0), np.uint8)
        self.attributes = {DMA_BUF: 1, ORDERING: 100}
        self.on_push: Callable[[], None] = lambda: None
        self.on_pull: Callable[[], None] = lambda: None

    def ring(self, harness: ScriptedHarness) -> DeviceRing:
        """The harness's ring, as one on this device; its scheduler has not begun yet."""
        return DeviceRing(self, harness.shape.ring(), harness.shape.epoch, pinned=False)  # type: ignore[arg-type]

    def make_current(self) -> None:
        pass

    def share(self, _address: int) -> bytes:
        return b"handle"

    def allocate(self, _nbytes: int) -> int:
        return int(self._memory.ctypes.data)

    def new_stream(self) -> int:
        return 0

    def call(self, function: str, *arguments: Any) -> Any:
        """The driver's call of this name."""
        match function, arguments:
            case "cuMemcpyHtoDAsync", (there, here, nbytes, _):
                self.on_push()
                ctypes.memmove(there, here, nbytes)
            case "cuMemcpyDtoHAsync", (here, there, nbytes, _):
                ctypes.memmove(here, there, nbytes)
                self.on_pull()
            case "cuDeviceGetAttribute", (name, "device"):
                return self.attributes[name]
            case "cuCtxGetDevice", ():
                return "device"
            case "cuMemGetHandleForAddressRange", (address, _, 1, 0):
                assert address == self._memory.ctypes.data
                return os.dup(self._file)
            case other:
                assert other == ("cuStreamSynchronize", (0,))
        return None
