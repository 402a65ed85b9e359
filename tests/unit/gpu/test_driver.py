"""Without CUDA everything imports, and what needs a GPU fails by name."""

from __future__ import annotations

import sys

import pytest

from blink_persistent.gpu.compile import DeviceCodeError, compile_program
from blink_persistent.gpu.driver import Gpu
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
