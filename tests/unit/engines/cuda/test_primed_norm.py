"""How the norm in CUDA C++ is cut, and that it compiles; test_ahead_launches.py runs it."""

from __future__ import annotations

import pytest

from blink_persistent.engines.cuda.kernels.cuts.primed_norm_cut import (
    MOST_WARPS,
    NormCall,
    norm_code,
    norm_cut,
)
from blink_persistent.gpu import compile as device_code
from blink_persistent.gpu.structs import layout_assertions


@pytest.mark.parametrize("size", [4, 576, 4096, 5120, 16384])
def test_a_thread_has_few_elements_and_a_block_no_idle_ones(size: int) -> None:
    warps, each = norm_cut(size)
    assert warps % 4 == 0
    assert warps <= MOST_WARPS
    assert 128 * warps * each >= size
    assert 128 * warps * (each - 1) < size


def test_the_kernel_compiles_where_there_is_a_device_compiler(device_compiler: None) -> None:
    code = device_code.compile_program(
        "primed_norm_gpu.cu",
        arch="sm_90",
        prologue=norm_code(*norm_cut(4096)),
        epilogue=layout_assertions([NormCall]),
    )
    assert b"blink_norm" in code
