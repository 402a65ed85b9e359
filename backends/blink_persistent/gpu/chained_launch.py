"""Launches of a kernel while the one before it ends (programmatic dependent launch, Hopper on)."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any

from blink_persistent.gpu.driver import Gpu, prefer_shared_memory


class ChainedKernel:
    """A loaded kernel with `threads` a block and `shared_bytes` of dynamic shared memory.

    One that is launched chained has to wait for the kernel before it on its own
    (griddepcontrol.wait).
    """

    def __init__(self, gpu: Gpu, function: Any, *, threads: int, shared_bytes: int) -> None:
        """`function`: of `DeviceProgram.function`. Raises CudaError."""
        self._gpu, self._function = gpu, function
        self._threads, self._shared_bytes = threads, shared_bytes
        wanted = gpu.driver.CUfunction_attribute
        most = wanted.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        gpu.call("cuFuncSetAttribute", function, most, shared_bytes)
        prefer_shared_memory(gpu, function)

    def allow_large_clusters(self) -> None:
        """Of up to 16 blocks, instead of 8. Raises CudaError."""
        allowed = self._gpu.driver.CUfunction_attribute
        large = allowed.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
        self._gpu.call("cuFuncSetAttribute", self._function, large, 1)

    def launch(
        self,
        grid: int,
        stream: int,
        *arguments: Any,
        chained: bool,
        cluster: int = 1,
        cooperative: bool = False,
    ) -> None:
        """Launch, or record, that many blocks; each argument is a value of `ctypes`.

        `cluster`: how many blocks run together, a divisor of `grid`. `cooperative`: all of them do,
        as soon as there is room; not of one that is chained.

        Waits as `Gpu.launch` does. Raises CudaError.
        """
        driver = self._gpu.driver
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = self._threads, 1, 1
        config.sharedMemBytes, config.hStream = self._shared_bytes, driver.CUstream(stream)
        kind, attributes = driver.CUlaunchAttributeID, []
        if chained:
            overlap = driver.CUlaunchAttribute()
            overlap.id = kind.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            overlap.value.programmaticStreamSerializationAllowed = 1
            attributes.append(overlap)
        if cluster > 1:
            together = driver.CUlaunchAttribute()
            together.id = kind.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            size = together.value.clusterDim
            size.x, size.y, size.z = cluster, 1, 1
            attributes.append(together)
        if cooperative:
            assert not chained
            at_once = driver.CUlaunchAttribute()
            at_once.id = kind.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            at_once.value.cooperative = 1
            attributes.append(at_once)
        if attributes:
            config.attrs, config.numAttrs = attributes, len(attributes)
        places = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        launch = partial(
            self._gpu.call,
            *("cuLaunchKernelEx", config, self._function, ctypes.addressof(places), 0),
        )
        self._gpu.enqueue(self._function, stream, launch)
