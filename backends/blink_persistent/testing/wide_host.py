"""Products of the tensor cores run thread by thread on this host: wide_product_host.cc."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

from blink_persistent.engines.cuda.kernels.cuts.wide_cut import (
    WideCut,
    WideKernel,
    wide_call,
    wide_code,
)
from blink_persistent.samplers.host_compile import compile_host_library
from blink_persistent.testing.primed_host import Way

_FAULTS = ("early_reads", "outside", "misaligned", "arrivals")


class TileFaults(ctypes.Structure):
    """What a GPU would not forgive, by kind (tiles_host.h)."""

    _fields_ = [(name, ctypes.c_uint32) for name in _FAULTS]

    def found(self) -> dict[str, int]:
        """Those that happened."""
        counts = {name: getattr(self, name) for name in _FAULTS}
        return {name: count for name, count in counts.items() if count}


class HostWideProducts:
    """The compiled kernels."""

    def __init__(self, kernels: Iterable[WideKernel]) -> None:
        """Raises EngineFailure with the compiler's words."""
        code = wide_code(kernels)
        self._library = ctypes.CDLL(str(compile_host_library("wide_product_host.cc", code)))

    def shared_bytes(self, kernel: WideKernel) -> int:
        """What the kernel itself says it needs, without what aligns it."""
        return int(getattr(self._library, kernel.name)(None, None, 0, None, False, 0, None))

    def run(
        self,
        cut: WideCut,
        row_tile: int,
        sizes: tuple[int, int, int],
        arrays: tuple[int, int, int],
        way: Way,
    ) -> None:
        """For `sizes` rows, features, inner elements; the addresses of x, weight and out.

        Where copies are not made late, multiplications are. Fails where threads wait for good, or
        a fault happened.
        """
        x, weight, out = arrays
        call, faults = wide_call(cut, out, sizes), TileFaults()
        kernel = getattr(self._library, WideKernel.of(cut, row_tile).name)
        stuck = kernel(
            *map(ctypes.c_void_p, (x, weight)),
            *(sizes[2], ctypes.byref(call)),
            *(ctypes.c_bool(way.copies_late), way.seed, ctypes.byref(faults)),
        )
        assert not stuck
        assert not faults.found()
