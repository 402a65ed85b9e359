"""Whether this machine can serve on a GPU at all, without importing anything that serves."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Sequence
from functools import cache

CUDA_VERSION = 13000  # of the driver interface that the device code's compiler writes for
DRIVER = 580  # the first driver with that interface
_SUCCESS = 0
_MAJOR, _MINOR = 75, 76  # attributes: a device's compute capability


def missing_for_gpu(device: int, modules: Sequence[str], extra: str = "cuda") -> str:
    """What keeps engines from GPU number `device`, in words for the user; "" where nothing does.

    `modules` are what the engine imports, `extra` is this project's that installs them.
    """
    absent = [name for name in modules if not _is_installed(name)]
    if absent:
        return f"needs {', '.join(absent)}: pip install 'blink-server[{extra}]'"
    count, cuda = gpus()
    if count <= device:
        found = f"only {count} found" if count else "none found"
        which = f"GPU {device}" if device else "an NVIDIA GPU"
        return f"needs {which} with driver {DRIVER} or later, {found}"
    if cuda < CUDA_VERSION:
        return (
            f"needs an NVIDIA driver {DRIVER} or later (CUDA {_dotted(CUDA_VERSION)}): "
            f"this one offers CUDA {_dotted(cuda)}"
        )
    return ""


@cache
def gpus() -> tuple[int, int]:
    """(GPUs that this process sees, the driver's CUDA version as 1000 * major + 10 * minor).

    Makes no context; (0, 0) where there is no driver or no GPU.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0, 0
    count, version = ctypes.c_int(), ctypes.c_int()
    for status in (
        driver.cuInit(0),
        driver.cuDriverGetVersion(ctypes.byref(version)),
        driver.cuDeviceGetCount(ctypes.byref(count)),
    ):
        if status != _SUCCESS:
            return 0, 0
    return count.value, version.value


def architecture(device: int) -> str:
    """GPU number `device` as "sm_90"; "" where it is not there. Makes no context."""
    if gpus()[0] <= device:
        return ""
    driver, handle = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    major, minor = ctypes.c_int(), ctypes.c_int()
    for status in (
        driver.cuDeviceGet(ctypes.byref(handle), device),
        driver.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, handle),
        driver.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, handle),
    ):
        if status != _SUCCESS:
            return ""
    return f"sm_{major.value}{minor.value}"


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"
