"""Compiled kernels as bytes: what a plan holds of the attention's kernels.

Little-endian: the number of kernels (u32); for each its role, variant, warps, bytes of shared
memory and bytes of code (u32 each) and its name (64 bytes, padded with zeros); then the code of
all of them in the same order. `csrc/tensorrt/attention_launches.h` reads the same.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

_COUNT = struct.Struct("<I")
_ENTRY = struct.Struct("<5I64s")


class Role(IntEnum):
    """What a kernel does in a step's attention: of decode's rows, or of packed prompts."""

    APPEND_ROWS = 0  # new keys and values to their KV entries
    ATTEND_ROWS = 1  # `variant` programs along a row's entries
    COMBINE_ROWS = 2  # the parts of `variant` programs
    APPEND_PACKED = 3
    ATTEND_PACKED = 4  # `variant` queries a program


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """A kernel for one architecture of GPUs: a cubin, and what its launch needs."""

    role: Role
    variant: int
    warps: int
    shared_bytes: int
    name: str
    cubin: bytes


def pack_kernels(kernels: Sequence[CompiledKernel]) -> bytes:
    """The archive of these kernels. Raises ValueError for a name of more than 64 bytes."""
    parts = [_COUNT.pack(len(kernels))]
    for kernel in kernels:
        name = kernel.name.encode()
        if len(name) > 64:
            raise ValueError(f"the kernel's name {kernel.name!r} is longer than 64 bytes")
        sizes = (kernel.variant, kernel.warps, kernel.shared_bytes, len(kernel.cubin))
        parts.append(_ENTRY.pack(kernel.role, *sizes, name))
    return b"".join([*parts, *(kernel.cubin for kernel in kernels)])


def unpack_kernels(archive: bytes) -> list[CompiledKernel]:
    """The kernels of an archive. Raises ValueError where it is not whole."""
    try:
        (count,) = _COUNT.unpack_from(archive)
        entries = [_ENTRY.unpack_from(archive, 4 + i * _ENTRY.size) for i in range(count)]
    except struct.error as error:
        raise ValueError("the attention's kernels are not whole") from error
    at, kernels = 4 + count * _ENTRY.size, []
    for role, variant, warps, shared, size, name in entries:
        cubin = archive[at : at + size]
        kernels.append(
            CompiledKernel(Role(role), variant, warps, shared, name.rstrip(b"\0").decode(), cubin)
        )
        at += size
    if at != len(archive):
        raise ValueError(f"the attention's kernels have {len(archive)} bytes of {at}")
    return kernels
