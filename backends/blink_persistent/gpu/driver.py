"""The CUDA driver calls that the GPU side is made of, checked, with their memory owned.

A `Gpu` is one device's primary context, two streams and everything allocated through it. It belongs
to one thread at a time. Calls that wait for a resident kernel (freeing memory, loading modules,
destroying executable graphs) are made only here and in `graphs.py`: inside `exclusive`, which parks
the schedulers of others, or by who has stopped or parked them all before.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from blink_persistent.gpu.compile import compile_program
from blink_persistent.gpu.structs import layout_assertions
from blink_server.errors import EngineFailure, Unavailable

_SLICE_SECONDS = 0.005  # of giving back, for which others stand still at a time


class CudaError(EngineFailure):
    """A driver call failed; the message has CUDA's name for it."""


def cuda_driver() -> Any:
    """The module cuda.bindings.driver. Raises Unavailable where it cannot be used."""
    try:
        from cuda.bindings import driver

        (status,) = driver.cuInit(0)
    except (ImportError, RuntimeError) as error:
        raise Unavailable(f"no CUDA driver: {error}") from error
    if status != driver.CUresult.CUDA_SUCCESS:
        raise Unavailable(f"no GPU: {status.name}")
    return driver


def checked_call(driver: Any, function: str, *arguments: object) -> Any:
    """A driver call's result: one value, a tuple of several, or None. Raises CudaError."""
    status, *results = getattr(driver, function)(*arguments)
    if status != driver.CUresult.CUDA_SUCCESS:
        raise CudaError(f"{function}: {status.name}")
    if len(results) > 1:
        return tuple(results)
    return results[0] if results else None


def prefer_shared_memory(gpu: Gpu, function: Any) -> None:
    """Have a multiprocessor with blocks of this kernel give all it can to shared memory.

    One that has to change its share must be empty first, so that others' blocks would wait for the
    end of these. Raises CudaError.
    """
    share = gpu.driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
    gpu.call("cuFuncSetAttribute", function, share, 100)


class Gpu:
    """One device. `arch` is its real architecture ("sm_90"), `io` the stream for copies.

    `exclusive()` is entered around slices of what waits for resident kernels, also now and then:
    the first streams, a kernel's first launch, an instantiation for which the driver needs memory.
    """

    def __init__(
        self,
        ordinal: int = 0,
        *,
        exclusive: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.driver = cuda_driver()
        self.exclusive = exclusive
        self._resources: list[Callable[[], object]] = []
        self._not_launched: set[int] = set()  # functions
        count = self.call("cuDeviceGetCount")
        if ordinal >= count:
            raise Unavailable(f"GPU {ordinal} does not exist: this machine has {count}")
        self._device = self.call("cuDeviceGet", ordinal)
        self.arch = "sm_{}{}".format(*self.call("cuDeviceComputeCapability", self._device))
        self._context = self.call("cuDevicePrimaryCtxRetain", self._device)
        self.own("cuDevicePrimaryCtxRelease", self._device)
        self.make_current()
        self.io = self.new_stream()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, function: str, *arguments: object) -> Any:
        """Its result (one value, a tuple of several, or None). Raises CudaError."""
        return checked_call(self.driver, function, *arguments)

    @property
    def may_cooperate(self) -> bool:
        """May graphs that the device launches have cooperative kernels? Not under MPS."""
        under_mps = self.driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MPS_ENABLED
        return not self.call("cuDeviceGetAttribute", under_mps, self._device)

    def make_current(self) -> None:
        """Have this thread's calls concern this device; those of the thread that made it do."""
        self.call("cuCtxSetCurrent", self._context)

    def close(self) -> None:
        """Give everything back, last first. Nothing may run on the device's streams any more.

        Raises the first CudaError, after it has tried the rest.
        """
        failures = []
        while self._resources:
            with self.exclusive():
                end = time.monotonic() + _SLICE_SECONDS
                while self._resources and time.monotonic() < end:
                    try:
                        self._resources.pop()()
                    except CudaError as error:
                        failures.append(error)
        if failures:
            raise failures[0]

    def own(self, function: str, *arguments: object) -> None:
        """Have `close` make this call."""
        self._resources.append(partial(self.call, function, *arguments))

    def at_close(self, release: Callable[[], object]) -> None:
        """Have `close` call it, before what was owned earlier is given back."""
        self._resources.append(release)

    def new_stream(self) -> Any:
        """A stream that waits for no other."""
        with self.exclusive():
            stream = self.call("cuStreamCreate", self.driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
        self.own("cuStreamDestroy", stream)
        return stream

    def allocate(self, nbytes: int) -> int:
        """Address of new, zeroed device memory."""
        address = self.call("cuMemAlloc", nbytes)
        self.own("cuMemFree", address)
        self.call("cuMemsetD8Async", address, 0, nbytes, self.io)
        self.call("cuStreamSynchronize", self.io)
        return int(address)

    def host_memory(self, nbytes: int) -> tuple[npt.NDArray[np.uint8], int]:
        """Zeroed pinned memory of the host: as an array, and its address on the device."""
        flags = self.driver.CU_MEMHOSTALLOC_DEVICEMAP | self.driver.CU_MEMHOSTALLOC_PORTABLE
        address = int(self.call("cuMemHostAlloc", nbytes, flags))
        self.own("cuMemFreeHost", address)
        memory = np.frombuffer(
            memoryview((ctypes.c_uint8 * nbytes).from_address(address)), np.uint8
        )
        memory[:] = 0
        return memory, int(self.call("cuMemHostGetDevicePointer", address, 0))

    def put(self, address: int, value: ctypes.Structure | npt.NDArray[Any]) -> None:
        """Copy a value to device memory; returns when it is there."""
        data = bytes(value) if isinstance(value, ctypes.Structure) else value.tobytes()
        self.call("cuMemcpyHtoDAsync", address, data, len(data), self.io)
        self.call("cuStreamSynchronize", self.io)

    def place(self, value: ctypes.Structure | npt.NDArray[Any]) -> int:
        """Address of a copy of the value in new device memory."""
        size = ctypes.sizeof(value) if isinstance(value, ctypes.Structure) else value.nbytes
        address = self.allocate(size)
        self.put(address, value)
        return address

    def fetch(self, address: int, dtype: npt.DTypeLike, count: int) -> npt.NDArray[Any]:
        """[count]: a copy of device memory; returns when it is here."""
        values = np.empty(count, dtype)
        self.call("cuMemcpyDtoHAsync", values.ctypes.data, address, values.nbytes, self.io)
        self.call("cuStreamSynchronize", self.io)
        return values

    def share(self, address: int) -> bytes:
        """A handle by which another process of this machine can open an allocation."""
        return bytes(self.call("cuIpcGetMemHandle", address).reserved)

    def open_shared(self, handle: bytes) -> int:
        """Address of another process's allocation here."""
        shared = self.driver.CUipcMemHandle()
        shared.reserved = handle
        lazily = self.driver.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
        address = self.call("cuIpcOpenMemHandle", shared, lazily)
        self.own("cuIpcCloseMemHandle", address)
        return int(address)

    def load(
        self,
        source: str,
        structs: Sequence[type[ctypes.Structure]],
        *,
        prologue: str = "",
        of_this_architecture: bool = False,
    ) -> DeviceProgram:
        """Compile, load and own `csrc/<source>`, with `prologue` before its text.

        `structs` are the mirrors that it must match. `of_this_architecture`: it uses instructions
        that no later one has ("sm_90a").
        """
        mirrors = layout_assertions(structs)
        arch = f"{self.arch}a" if of_this_architecture else self.arch
        cubin = compile_program(source, arch=arch, prologue=prologue, epilogue=mirrors)
        with self.exclusive():
            module = self.call("cuModuleLoadData", cubin)
        self.own("cuModuleUnload", module)
        return DeviceProgram(self, module)

    def launch(
        self, function: Any, grid: int, block: int, stream: Any, *arguments: tuple[Any, Any]
    ) -> None:
        """Launch a kernel, or record it; each argument is (value, ctypes type).

        Waits for the end of the first launch of each.
        """
        values = tuple(value for value, _ in arguments)
        kinds = tuple(kind for _, kind in arguments)
        launch = partial(
            self.call,
            *("cuLaunchKernel", function, grid, 1, 1, block, 1, 1, 0, stream, (values, kinds), 0),
        )
        self.enqueue(function, stream, launch)

    def enqueue(self, function: Any, stream: Any, launch: Callable[[], object]) -> None:
        """Have `launch` launch the kernel on the stream, or record it; as `launch` waits."""
        if int(function) not in self._not_launched or self._is_recording(stream):
            launch()
            return
        self.call("cuStreamSynchronize", stream)
        with self.exclusive():
            launch()
            self.call("cuStreamSynchronize", stream)
        self._not_launched.discard(int(function))

    def not_launched(self, function: Any) -> None:
        """This kernel has not been launched yet."""
        self._not_launched.add(int(function))

    def _is_recording(self, stream: Any) -> bool:
        status = self.call("cuStreamIsCapturing", stream)
        return bool(status != self.driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE)

    def free_bytes(self) -> int:
        """Device memory that nobody has."""
        return int(self.call("cuMemGetInfo")[0])


class DeviceProgram:
    """A loaded module."""

    def __init__(self, gpu: Gpu, module: Any) -> None:
        self._gpu = gpu
        self._module = module

    def function(self, name: str) -> Any:
        """The kernel of this name, on the device already."""
        with self._gpu.exclusive():
            function = self._gpu.call("cuModuleGetFunction", self._module, name.encode())
            self._gpu.call("cuFuncLoad", function)
        self._gpu.not_launched(function)
        return function
