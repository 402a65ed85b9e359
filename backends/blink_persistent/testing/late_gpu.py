"""A stand-in for `Gpu` whose copies are made as late as a stream allows: when somebody waits."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt


class LateGpu:
    """Has what `CudaPort` asks of a `Gpu`; device addresses are those of host memory.

    `landed` is called after copies to the device.
    """

    def __init__(self, landed: Callable[[], None] = lambda: None) -> None:
        self._landed = landed
        self._pending: list[tuple[int, int, int]] = []  # destination, source, bytes
        self._held: list[npt.NDArray[np.uint8]] = []

    def new_stream(self) -> object:
        """The one stream."""
        return object()

    def host_memory(self, nbytes: int) -> tuple[npt.NDArray[np.uint8], int]:
        """Memory that lives until `close`."""
        memory = np.zeros(nbytes, np.uint8)
        self._held.append(memory)
        return memory, memory.ctypes.data

    def call(self, function: str, *arguments: Any) -> None:
        """The three calls of a port."""
        if function in ("cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync"):
            self._pending.append(arguments[:3])
        elif function == "cuStreamSynchronize":
            pending, self._pending = self._pending, []
            for copy in pending:
                ctypes.memmove(*copy)
            self._landed()
        else:
            raise NotImplementedError(function)

    def close(self) -> None:
        """Give the memory back; a copy may not be under way."""
        if self._pending:
            raise RuntimeError("closed while copies are under way")
        self._held.clear()
