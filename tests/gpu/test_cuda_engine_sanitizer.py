"""memcheck finds nothing in the captured graphs of the engine `cuda`, driven by a host thread.

racecheck is left out: it reports races inside the library's own kernels, and under it alone the
program ends with an illegal address (docs/cuda-engine.md).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        shutil.which("compute-sanitizer") is None, reason="compute-sanitizer is not installed"
    ),
]


@pytest.mark.parametrize("decode_kernels", ["measured", "primed"])
def test_a_small_model_is_clean(tmp_path: Path, decode_kernels: str) -> None:
    program = Path(__file__).with_name("engine_run.py")
    # PyTorch tries calls that are refused here, and goes on without them.
    watched = ["compute-sanitizer", "--tool", "memcheck", "--report-api-errors", "no"]
    watched += ["--error-exitcode", "9"]
    command = [*watched, sys.executable, str(program), str(tmp_path), decode_kernels]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "all answers are right" in done.stdout
