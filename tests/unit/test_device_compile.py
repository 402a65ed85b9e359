"""The scheduler compiles as device code, cleanly, wherever nvcc is found."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import blink_persistent

CSRC = Path(blink_persistent.__file__).parent / "csrc"
NVCC = shutil.which("nvcc")


@pytest.mark.skipif(NVCC is None, reason="nvcc is not on the path")
def test_the_scheduler_compiles_without_warnings_spills_or_stack(tmp_path: Path) -> None:
    """A spill or a stack frame in the one persistent block would cost every token of every user."""
    command = [NVCC, "-std=c++17", "-arch=sm_90", "-rdc=true", "-dc", "-Xptxas", "-v"]
    files = ["-I", CSRC / "include", CSRC / "scheduler_gpu.cu", "-o", tmp_path / "scheduler.o"]
    finished = subprocess.run([*command, *files], capture_output=True, text=True, check=False)  # type: ignore[list-item]
    output = finished.stdout + finished.stderr
    assert finished.returncode == 0, output
    assert "warning" not in output.lower(), output
    kernels = re.findall(
        r"Compiling entry function '(\w+)'.*?"
        r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads",
        output,
        re.DOTALL,
    )
    assert "blink_scheduler" in {kernel for kernel, *_ in kernels}, output
    assert all(counts == ["0", "0", "0"] for _, *counts in kernels), output
