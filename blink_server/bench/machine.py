"""On what a measurement ran."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("blink-server", "falcon", "gunicorn", "numpy", "onnxruntime", "tokenizers", "uvloop")


def describe_machine(packages: Sequence[str] = PACKAGES) -> dict[str, Any]:
    """CPU, cores this process may use, memory, load, kernel, and versions of Python packages."""
    return {
        "cpu": _field("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "memory": _field("/proc/meminfo", "MemTotal"),
        "load_average_at_start": os.getloadavg()[0],
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in packages},
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _field(path: str, name: str) -> str:
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""
