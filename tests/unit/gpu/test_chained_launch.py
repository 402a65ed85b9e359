"""A launch asks for the overlap, or for all blocks at once, and for the shared memory, and waits as
others do."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_uint32, c_uint64, c_void_p
from types import SimpleNamespace
from typing import Any

import pytest

from blink_persistent.gpu.chained_launch import ChainedKernel

driver = pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")


class FakeGpu:
    """Keeps the calls that a launch makes."""

    def __init__(self) -> None:
        self.driver = driver
        self.calls: list[tuple[Any, ...]] = []
        self.enqueued: list[tuple[Any, Any]] = []
        self.arguments: tuple[int, int] | None = None

    def call(self, *call: Any) -> None:
        self.calls.append(call)
        if call[0] == "cuLaunchKernelEx":
            first, second = (c_void_p * 2).from_address(call[3])
            self.arguments = c_uint32.from_address(first).value, c_uint64.from_address(second).value

    def enqueue(self, function: Any, stream: Any, launch: Callable[[], object]) -> None:
        self.enqueued.append((function, stream))
        launch()


@pytest.mark.parametrize("chained", [False, True])
def test_a_launch_is_configured(chained: bool) -> None:
    gpu: Any = FakeGpu()
    function = SimpleNamespace()
    kernel = ChainedKernel(gpu, function, threads=96, shared_bytes=200_000)
    kernel.launch(7, 0, c_uint32(5), c_uint64(6), chained=chained)
    (most, share, launched), stream = gpu.calls, 0
    wanted = driver.CUfunction_attribute
    dynamic = wanted.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    assert most == ("cuFuncSetAttribute", function, dynamic, 200_000)
    carveout = wanted.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
    assert share == ("cuFuncSetAttribute", function, carveout, 100)
    name, config, found, _, extra = launched
    assert (name, found, extra) == ("cuLaunchKernelEx", function, 0)
    assert gpu.arguments == (5, 6)
    assert (config.gridDimX, config.gridDimY, config.gridDimZ) == (7, 1, 1)
    assert (config.blockDimX, config.blockDimY, config.blockDimZ) == (96, 1, 1)
    assert config.sharedMemBytes == 200_000
    assert config.numAttrs == int(chained)
    assert gpu.enqueued == [(function, stream)]
    if chained:
        (overlap,) = config.attrs
        serial = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        assert overlap.id == serial
        assert overlap.value.programmaticStreamSerializationAllowed == 1


def test_all_blocks_can_be_launched_at_once() -> None:
    gpu: Any = FakeGpu()
    kernel = ChainedKernel(gpu, SimpleNamespace(), threads=96, shared_bytes=0)
    kernel.launch(7, 0, c_uint32(5), c_uint64(6), chained=False, cooperative=True)
    (attribute,) = gpu.calls[-1][1].attrs
    assert attribute.id == driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
    assert attribute.value.cooperative == 1
    with pytest.raises(AssertionError):
        kernel.launch(7, 0, c_uint32(5), c_uint64(6), chained=True, cooperative=True)
