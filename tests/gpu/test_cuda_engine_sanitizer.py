"""memcheck finds nothing in the captured graphs of the engine `cuda`, driven by a host thread, and
no tool anything in the kernels that read ahead alone.

racecheck is left out of the graphs: it reports races inside the library's own kernels, and under
it alone the program ends with an illegal address (docs/cuda-engine.md). Of all layers in one kernel
it reports a store to shared memory and a load between which all threads pass a named barrier.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        shutil.which("compute-sanitizer") is None, reason="compute-sanitizer is not installed"
    ),
]


@pytest.mark.parametrize("decode_kernels", ["measured", "likely"])
def test_a_small_model_is_clean(tmp_path: Path, decode_kernels: str) -> None:
    said = run_under("memcheck", "engine_run.py", str(tmp_path), decode_kernels)
    assert "all answers are right" in said


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck"])
def test_the_kernels_that_read_ahead_are_clean(tool: str) -> None:
    if torch.cuda.get_device_capability(0) != (9, 0):
        pytest.skip("they are for compute capability 9.0")
    left_out = ["--without-layers"] if tool == "racecheck" else []
    assert "all results are right" in run_under(tool, "ahead_run.py", *left_out)


def run_under(tool: str, program: str, *arguments: str) -> str:
    """What a program beside this file writes; fails where the tool found something."""
    watched = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9"]
    if tool == "memcheck":  # PyTorch tries calls that are refused here, and goes on without them
        watched += ["--report-api-errors", "no"]
    command = [*watched, sys.executable, str(Path(__file__).with_name(program)), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout
