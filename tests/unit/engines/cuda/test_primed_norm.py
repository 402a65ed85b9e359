"""The norm in CUDA C++ is that of plain PyTorch, lane by lane on a host; it compiles."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from blink_persistent.engines.cuda.kernels.primed_norm_cut import (
    MOST_WARPS,
    NormCall,
    norm_code,
    norm_cut,
)
from blink_persistent.gpu import compile as device_code
from blink_persistent.gpu.structs import layout_assertions
from blink_persistent.samplers.host_compile import compile_host_library
from blink_persistent.testing.primed_host import Faults

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")


class HostGpu:
    """Runs the kernel that is loaded lane by lane."""

    def __init__(self) -> None:
        self.driver: Any = pytest.importorskip("cuda.bindings.driver")
        self.grids: list[int] = []

    def load(self, source: str, structs: Any, *, prologue: str) -> Any:
        library = compile_host_library(source.replace("_gpu.cu", "_host.cc"), prologue)
        return SimpleNamespace(function=lambda name: getattr(ctypes.CDLL(str(library)), name))

    def call(self, name: str, *arguments: Any) -> None:
        if name == "cuLaunchKernelEx":
            config, function, places, _ = arguments
            (call,) = (ctypes.c_void_p * 1).from_address(places)
            faults = Faults()
            assert not function(ctypes.c_void_p(call), 3, ctypes.byref(faults))
            assert not faults.found()
            self.grids.append(config.gridDimX)

    def enqueue(self, function: Any, stream: Any, launch: Any) -> None:
        launch()


@needs_compiler
@pytest.mark.parametrize(("parts", "rows"), [(1, 1), (4, 3), (9, 2)])
@pytest.mark.parametrize("size", [64, 576, 2052, 5120])
def test_it_adds_and_norms_as_plain_pytorch_does(
    monkeypatch: pytest.MonkeyPatch, size: int, parts: int, rows: int
) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from blink_persistent.engines.cuda.kernels.primed_norm import PrimedNorm
    from blink_persistent.engines.cuda.kernels.reference import ReferenceKernels

    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    torch.manual_seed(size)
    gpu: Any = HostGpu()
    norm = PrimedNorm(gpu, size)
    delta, gain = torch.randn(parts, rows, size), torch.rand(size).bfloat16()
    first = torch.randn(rows, size)
    found, expected = (
        (first.clone(), torch.full((rows, size), torch.nan).bfloat16()) for _ in range(2)
    )
    norm(delta, gain, 1e-5, *found, chained=True)
    ReferenceKernels().add_norm(delta, gain, 1e-5, *expected)
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[1], expected[1], rtol=2**-7, atol=1e-6)
    assert gpu.grids == [rows]


def test_it_takes_what_its_own_products_leave() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from blink_persistent.engines.cuda.kernels.primed_norm import PrimedNorm

    class Loads(HostGpu):
        def load(self, source: str, structs: Any, *, prologue: str) -> Any:
            return SimpleNamespace(function=lambda name: name)

    gpu: Any = Loads()
    norm = PrimedNorm(gpu, 512)
    assert norm.takes(torch.empty(2, 64, 512))
    assert not norm.takes(torch.empty(2, 65, 512))
    assert not norm.takes(torch.empty(1, 8, 512, dtype=torch.bfloat16))


@pytest.mark.parametrize("size", [4, 576, 4096, 5120, 16384])
def test_a_thread_has_few_elements_and_a_block_no_idle_ones(size: int) -> None:
    warps, each = norm_cut(size)
    assert warps % 4 == 0
    assert warps <= MOST_WARPS
    assert 128 * warps * each >= size
    assert 128 * warps * (each - 1) < size


def test_the_kernel_compiles_where_there_is_a_device_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        device_code.find_device_runtime()
        device_code._libraries()
    except device_code.DeviceCodeError as missing:
        pytest.skip(f"no device compiler: {missing}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code = device_code.compile_program(
        "primed_norm_gpu.cu",
        arch="sm_90",
        prologue=norm_code(*norm_cut(4096)),
        epilogue=layout_assertions([NormCall]),
    )
    assert b"blink_norm" in code
