"""How the norm in CUDA C++ is cut, and its kernel's text and parameters (primed_norm.h)."""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_uint32, c_uint64

MOST_WARPS = 16
_AT_ONCE = 4  # elements that a thread loads together


class NormCall(ctypes.Structure):
    """The kernel's parameters (primed_norm.h)."""

    _fields_ = [
        *((name, c_uint64) for name in ("delta", "gain", "residual", "out")),
        ("epsilon", c_float),
        *((name, c_uint32) for name in ("parts", "rows", "size")),
    ]


def norm_cut(size: int) -> tuple[int, int]:
    """Warps, a multiple of 4, and how many times 4 elements a thread has."""
    assert size % _AT_ONCE == 0
    warps = min(-(-size // (32 * _AT_ONCE * 4)) * 4, MOST_WARPS)
    return warps, -(-size // (32 * _AT_ONCE * warps))


def norm_code(warps: int, each: int) -> str:
    """The text that stands before primed_norm_gpu.cu."""
    return f"#define BLINK_WARPS {warps}\n#define BLINK_EACH {each}\n"
