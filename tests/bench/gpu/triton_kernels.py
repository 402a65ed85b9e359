"""Triton's kernels, and what share of a multiprocessor's memory they ask for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import triton

from blink_persistent.gpu.driver import Gpu


class TritonKernels:
    """All that Triton loads from now on."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu, self._functions = gpu, set[int]()
        triton.knobs.runtime.kernel_load_end_hook.add(self._loaded)

    def _loaded(self, module: int, function: int, *_: object) -> None:
        self._functions.add(function)

    @contextmanager
    def all_shared(self) -> Iterator[None]:
        """While it is open, they prefer as much shared memory as there is."""
        self._prefer(100)
        try:
            yield
        finally:
            self._prefer(-1)

    def _prefer(self, percent: int) -> None:
        attribute = self._gpu.driver.CUfunction_attribute
        share = attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
        for function in self._functions:
            place = self._gpu.driver.CUfunction(function)
            self._gpu.call("cuFuncSetAttribute", place, share, percent)
