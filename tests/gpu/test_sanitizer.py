"""compute-sanitizer finds nothing in the scheduler and the scripted engine's graphs, whoever
launches them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        shutil.which("compute-sanitizer") is None, reason="compute-sanitizer is not installed"
    ),
]


@pytest.mark.parametrize("scheduler", ["device", "host"])
@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck", "initcheck"])
def test_a_crowded_run_is_clean(tool: str, scheduler: str) -> None:
    program = Path(__file__).with_name("crowded_run.py")
    watched = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9"]
    command = [*watched, sys.executable, str(program), scheduler]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all answers are right" in done.stdout
