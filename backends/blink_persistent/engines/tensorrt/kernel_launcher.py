"""Loads compiled kernels and launches them, in whatever CUDA context is current."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from blink_persistent.engines.tensorrt.attention_launches import Launch
from blink_persistent.engines.tensorrt.kernel_archive import CompiledKernel
from blink_persistent.gpu.driver import checked_call, cuda_driver

SCHEDULERS_PROCESSORS = 1  # multiprocessors that the resident scheduler keeps to itself
_PLAIN_SHARED_BYTES = 48 << 10  # that a kernel may have without asking for more
_WARP = 32


class KernelLauncher:
    """One a process. A kernel stays loaded as long as its context: versions share them."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self._functions: dict[tuple[int, bytes], Any] = {}  # by context and code
        self._processors: dict[int, int] = {}  # by context

    def load(self, kernels: Iterable[CompiledKernel]) -> None:
        """Those that the context does not have yet; it waits for resident kernels. CudaError."""
        context = self._context()
        for kernel in kernels:
            if (context, kernel.cubin) not in self._functions:
                self._functions[context, kernel.cubin] = self._load(kernel)

    def processors(self) -> int:
        """Multiprocessors of the device that an engine may fill."""
        context = self._context()
        if context not in self._processors:
            attribute = self._driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
            device = self._call("cuCtxGetDevice")
            count = self._call("cuDeviceGetAttribute", attribute, device)
            self._processors[context] = max(1, count - SCHEDULERS_PROCESSORS)
        return self._processors[context]

    def launch(self, launch: Launch, stream: int) -> None:
        """Launch, or record. Raises CudaError naming the kernel's call."""
        self.load([launch.kernel])
        function = self._functions[self._context(), launch.kernel.cubin]
        values = tuple(value for value, _ in launch.arguments)
        kinds = tuple(kind for _, kind in launch.arguments)
        block = (launch.kernel.warps * _WARP, 1, 1)
        shared = launch.kernel.shared_bytes
        self._call(
            "cuLaunchKernel", function, *launch.grid, *block, shared, stream, (values, kinds), 0
        )

    def _load(self, kernel: CompiledKernel) -> Any:
        module = self._call("cuModuleLoadData", kernel.cubin)
        function = self._call("cuModuleGetFunction", module, kernel.name.encode())
        self._call("cuFuncLoad", function)
        if kernel.shared_bytes > _PLAIN_SHARED_BYTES:
            attribute = self._driver.CUfunction_attribute
            dynamic = attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._call("cuFuncSetAttribute", function, dynamic, kernel.shared_bytes)
        return function

    def _context(self) -> int:
        """A number that no other context of the process had or has."""
        return int(self._call("cuCtxGetId", self._call("cuCtxGetCurrent")))

    def _call(self, function: str, *arguments: object) -> Any:
        return checked_call(self._driver, function, *arguments)


@functools.cache
def kernel_launcher() -> KernelLauncher:
    """That of this process. Raises Unavailable where there is no CUDA driver."""
    return KernelLauncher(cuda_driver())
