"""Pieces of a file side by side in the address space, so that one memory region covers them."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

_PROT_NONE, _MAP_FIXED = 0, 0x10
_FAILED = ctypes.c_void_p(-1).value


class Stitched:
    """Shared mappings of (start, length) pieces of a file, one behind the other.

    `addresses` has each piece's. Starts and lengths are multiples of the page size.
    """

    def __init__(self, file: int, pieces: Sequence[tuple[int, int]], *, writable: bool) -> None:
        """Raises OSError, ValueError for pieces that no pages fit."""
        if any(number % mmap.PAGESIZE for piece in pieces for number in piece):
            raise ValueError(f"the ring's parts do not fit pages of {mmap.PAGESIZE} bytes")
        self.length = sum(length for _, length in pieces)
        reserved = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self.address = _map(None, self.length, _PROT_NONE, reserved, -1, 0)
        self.addresses: list[int] = []
        access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        at = self.address
        try:
            for start, length in pieces:
                _map(at, length, access, mmap.MAP_SHARED | _MAP_FIXED, file, start)
                self.addresses.append(at)
                at += length
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Unmap; no memory region may cover it any more."""
        _libc.munmap(self.address, self.length)


def _map(address: int | None, length: int, access: int, flags: int, file: int, offset: int) -> int:
    found = _libc.mmap(address, length, access, flags, file, offset)
    if found == _FAILED or found is None:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(found)
