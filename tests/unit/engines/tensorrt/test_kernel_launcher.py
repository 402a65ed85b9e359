"""Kernels are loaded once a context, and launched with the arguments that they take."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from blink_persistent.engines.tensorrt.attention_launches import Launch
from blink_persistent.engines.tensorrt.kernel_archive import CompiledKernel, Role
from blink_persistent.engines.tensorrt.kernel_launcher import KernelLauncher
from blink_persistent.gpu.driver import CudaError

SMALL = CompiledKernel(Role.APPEND_ROWS, 0, 1, 1024, "append", b"small")
LARGE = CompiledKernel(Role.ATTEND_PACKED, 128, 8, 65536, "attend", b"large")


class FakeDriver:
    """Keeps the calls; a context's number changes when `context` does."""

    CUresult = SimpleNamespace(CUDA_SUCCESS=0)
    CUdevice_attribute = SimpleNamespace(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT="processors")
    CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="shared")

    def __init__(self) -> None:
        self.context = 1
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> tuple[Any, ...]:
            self.calls.append((name, *arguments))
            if name == "cuModuleLoadData" and arguments[0] == b"broken":
                return (SimpleNamespace(name="CUDA_ERROR_NO_BINARY_FOR_GPU"), None)
            known = {
                "cuCtxGetId": self.context,
                "cuDeviceGetAttribute": 132,
                "cuModuleLoadData": arguments[0] if arguments else None,
                "cuModuleGetFunction": f"function {arguments[-1]!r}" if arguments else None,
            }
            return 0, known.get(name, 7)

        return call

    def named(self, name: str) -> list[tuple[Any, ...]]:
        return [call[1:] for call in self.calls if call[0] == name]


def test_a_kernel_is_loaded_once_a_context() -> None:
    driver = FakeDriver()
    launcher = KernelLauncher(driver)
    launcher.load([SMALL, LARGE])
    launcher.load([LARGE, SMALL])
    assert driver.named("cuModuleLoadData") == [(b"small",), (b"large",)]
    assert driver.named("cuFuncSetAttribute") == [("function b'attend'", "shared", 65536)]
    driver.context = 2
    launcher.load([SMALL])
    assert driver.named("cuModuleLoadData")[2:] == [(b"small",)]


def test_a_launch_has_its_arguments_and_their_types() -> None:
    driver = FakeDriver()
    arguments = ((4096, ctypes.c_void_p), (3, ctypes.c_int32), (0.5, ctypes.c_float))
    KernelLauncher(driver).launch(Launch(LARGE, (2, 3, 4), arguments), 77)
    (launched,) = driver.named("cuLaunchKernel")
    values_and_kinds = ((4096, 3, 0.5), (ctypes.c_void_p, ctypes.c_int32, ctypes.c_float))
    assert launched == (
        "function b'attend'",
        *(2, 3, 4),
        *(256, 1, 1),
        65536,
        77,
        values_and_kinds,
        0,
    )


def test_one_multiprocessor_is_the_schedulers() -> None:
    assert KernelLauncher(FakeDriver()).processors() == 131


def test_code_for_another_gpu_is_named() -> None:
    broken = CompiledKernel(Role.APPEND_ROWS, 0, 1, 0, "append", b"broken")
    with pytest.raises(CudaError, match="cuModuleLoadData: CUDA_ERROR_NO_BINARY_FOR_GPU"):
        KernelLauncher(FakeDriver()).load([broken])
