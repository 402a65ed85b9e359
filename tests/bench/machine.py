"""On what a benchmark ran."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

_PACKAGES = ("blink-server", "falcon", "gunicorn", "numpy", "onnxruntime", "tokenizers", "uvloop")


def describe_machine() -> dict[str, Any]:
    """CPU, cores this process may use, memory, load, versions, and the commit that is measured."""
    return {
        "cpu": _field("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "memory": _field("/proc/meminfo", "MemTotal"),
        "load_average_at_start": os.getloadavg()[0],
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in _PACKAGES},
        "commit": _commit(),
    }


def _field(path: str, name: str) -> str:
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def _commit() -> str:
    """The checkout's commit; a mark where the tree has other contents."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    return finished.stdout.strip() or "not a checkout"
