"""Kernels in CUDA C++ run lane by lane on this host: primed_product_host.cc and its like."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from blink_persistent.engines.cuda.kernels.primed_attention_cut import (
    AttentionCall,
    AttentionCut,
    attention_code,
)
from blink_persistent.engines.cuda.kernels.primed_cut import PrimedCut, PrimedKernel, primed_code
from blink_persistent.samplers.host_compile import compile_host_library

_FAULTS = ("early_reads", "outside", "misaligned", "bank_conflicts")


class Faults(ctypes.Structure):
    """What a GPU would not forgive, by kind (lanes_host.h)."""

    _fields_ = [(name, ctypes.c_uint32) for name in _FAULTS]

    def found(self) -> dict[str, int]:
        """Those that happened."""
        counts = {name: getattr(self, name) for name in _FAULTS}
        return {name: count for name, count in counts.items() if count}


@dataclass(frozen=True, slots=True)
class Way:
    """How the host plays the GPU: when copies are made, and the order of the lanes."""

    copies_late: bool = True
    seed: int = 1


class HostProducts:
    """The compiled kernels."""

    def __init__(self, kernels: Iterable[PrimedKernel]) -> None:
        """Raises EngineFailure with the compiler's words."""
        code = primed_code(kernels)
        self._library = ctypes.CDLL(str(compile_host_library("primed_product_host.cc", code)))

    def shared_bytes(self, kernel: PrimedKernel) -> int:
        """What the kernel itself says it needs."""
        return int(getattr(self._library, kernel.name)(*(None,) * 3, *(0,) * 7, None))

    def run(
        self,
        cut: PrimedCut,
        row_tile: int,
        sizes: tuple[int, int, int],
        arrays: tuple[int, int, int],
        way: Way = Way(),
    ) -> None:
        """For `sizes` rows, features, inner elements; the addresses of x, weight and out.

        Fails where lanes wait for good, or a fault happened.
        """
        rows, size, depth = sizes
        faults = Faults()
        kernel = getattr(self._library, PrimedKernel.of(cut, row_tile).name)
        stuck = kernel(
            *map(ctypes.c_void_p, arrays),
            *(rows, size, depth, depth // cut.splits, cut.blocks),
            *(ctypes.c_bool(way.copies_late), way.seed, ctypes.byref(faults)),
        )
        assert not stuck
        assert not faults.found()


class HostAttention:
    """The compiled attention, for heads of a size."""

    def __init__(self, cuts: Iterable[AttentionCut], head_dim: int) -> None:
        """Raises EngineFailure with the compiler's words."""
        code = attention_code(cuts, head_dim)
        library = compile_host_library("primed_attention_host.cc", code)
        self._library, self._head_dim = ctypes.CDLL(str(library)), head_dim

    def shared_bytes(self, cut: AttentionCut) -> int:
        """What the kernel itself says it needs."""
        name = cut.kernel_name(self._head_dim)
        return int(getattr(self._library, name)(None, 0, False, 0, None))

    def run(self, cut: AttentionCut, call: AttentionCall, pages: int, way: Way = Way()) -> None:
        """For KV of so many blocks.

        Fails where lanes wait for good, or a fault happened.
        """
        faults = Faults()
        stuck = getattr(self._library, cut.kernel_name(self._head_dim))(
            *(ctypes.byref(call), pages),
            *(ctypes.c_bool(way.copies_late), way.seed, ctypes.byref(faults)),
        )
        assert not stuck
        assert not faults.found()


def bfloat16(values: npt.NDArray[Any]) -> npt.NDArray[np.uint16]:
    """Rounded to nearest, ties to even."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def float32(values: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """What bfloat16 values are."""
    return (values.astype(np.uint32) << 16).view(np.float32)
