"""Without CUDA everything imports, and what needs a GPU fails by name; what waits has slices."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from blink_persistent.gpu import driver
from blink_persistent.gpu.compile import DeviceCodeError, compile_program
from blink_persistent.gpu.driver import Gpu
from blink_persistent.gpu.graphs import device_graph
from blink_server.errors import Unavailable


@pytest.fixture
def no_cuda_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*sys.modules, "cuda"]:
        if name == "cuda" or name.startswith("cuda."):
            monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.usefixtures("no_cuda_packages")
def test_a_gpu_without_the_packages_is_unavailable() -> None:
    with pytest.raises(Unavailable, match="no CUDA driver"):
        Gpu()


@pytest.mark.usefixtures("no_cuda_packages")
def test_device_code_without_the_packages_names_the_extra() -> None:
    with pytest.raises(DeviceCodeError, match="'cuda' extra"):
        compile_program("scheduler_gpu.cu", arch="sm_90")


class FakeDriver:
    """Answers every call with success and keeps its name, marked where it was made in a slice."""

    CUresult = SimpleNamespace(CUDA_SUCCESS=0)
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL=1)
    CUstreamCaptureStatus = SimpleNamespace(CU_STREAM_CAPTURE_STATUS_NONE=0)
    CUgraphInstantiate_flags = SimpleNamespace(CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH=4)
    CUDA_GRAPH_INSTANTIATE_PARAMS = SimpleNamespace
    CUdevice_attribute = SimpleNamespace(CU_DEVICE_ATTRIBUTE_MPS_ENABLED=133)

    def __init__(self) -> None:
        self.parked = False
        self.under_mps = 0
        self.calls: list[str] = []
        self.recording = False

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        assert not self.parked, "slices do not nest"
        self.parked = True
        try:
            yield
        finally:
            self.parked = False

    def __getattr__(self, name: str) -> Callable[..., tuple[int, Any]]:
        def call(*_: object) -> tuple[int, Any]:
            self.calls.append(f"[{name}]" if self.parked else name)
            if name in ("cuStreamBeginCapture", "cuStreamEndCapture"):
                self.recording = name == "cuStreamBeginCapture"
            known = {
                "cuDeviceGetCount": 1,
                "cuDeviceComputeCapability": (9, 0),
                "cuStreamIsCapturing": int(self.recording),
                "cuDeviceGetAttribute": self.under_mps,
            }
            return 0, known.get(name, 7)

        return call


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    made = FakeDriver()
    monkeypatch.setattr(driver, "cuda_driver", lambda: made)
    monkeypatch.setattr(driver, "compile_program", lambda *_, **__: b"")
    return made


def test_what_waits_for_resident_kernels_happens_in_slices(fake: FakeDriver) -> None:
    gpu = Gpu(exclusive=fake.exclusive)
    gpu.allocate(64)
    kernel = gpu.load("any.cu", ()).function("kernel")
    device_graph(gpu, lambda stream: gpu.launch(kernel, 1, 1, stream))
    for _ in range(2):
        gpu.launch(kernel, 1, 1, gpu.io)
    gpu.close()
    waits = {call.strip("[]") for call in fake.calls if call.startswith("[")}
    assert waits == {
        *("cuStreamCreate", "cuModuleLoadData", "cuModuleGetFunction", "cuFuncLoad"),
        *("cuGraphInstantiateWithParams", "cuLaunchKernel", "cuStreamSynchronize"),
        *("cuGraphExecDestroy", "cuModuleUnload", "cuMemFree", "cuStreamDestroy"),
        "cuDevicePrimaryCtxRelease",
    }


def test_no_kernel_is_launched_whole_under_mps(fake: FakeDriver) -> None:
    gpu = Gpu()
    assert gpu.may_cooperate
    fake.under_mps = 1
    assert not gpu.may_cooperate


def test_only_the_first_launch_of_a_kernel_has_a_slice(fake: FakeDriver) -> None:
    gpu = Gpu(exclusive=fake.exclusive)
    kernel = gpu.load("any.cu", ()).function("kernel")
    device_graph(gpu, lambda stream: gpu.launch(kernel, 1, 1, stream))
    for _ in range(2):
        gpu.launch(kernel, 1, 1, gpu.io)
    launches = [call for call in fake.calls if "cuLaunchKernel" in call]
    assert launches == ["cuLaunchKernel", "[cuLaunchKernel]", "cuLaunchKernel"]


def test_a_capture_in_which_something_fails_is_ended_and_its_graph_given_back(
    fake: FakeDriver,
) -> None:
    def fail(_stream: Any) -> None:
        raise ValueError("what has failed")

    gpu = Gpu(exclusive=fake.exclusive)
    with pytest.raises(ValueError, match="what has failed"):
        device_graph(gpu, fail)
    assert fake.calls[-2:] == ["cuStreamEndCapture", "cuGraphDestroy"]
