"""Kernels in CUDA C++ run lane by lane on this host: primed_product_host.cc and its like."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from blink_persistent.engines.cuda.kernels.cuts.attention_call import AttentionCall
from blink_persistent.engines.cuda.kernels.cuts.choices import AnyAttention
from blink_persistent.engines.cuda.kernels.cuts.direct_attention_cut import DirectCut, direct_code
from blink_persistent.engines.cuda.kernels.cuts.even_attention_cut import PAGE, EvenCut, even_code
from blink_persistent.engines.cuda.kernels.cuts.primed_cut import (
    PrimedCut,
    PrimedKernel,
    primed_code,
)
from blink_persistent.samplers.host_compile import compile_host_library

try:
    from cuda.bindings import driver  # its structs need no GPU
except ImportError:
    driver = None

_ANY_PAGES = 1 << 16  # as many as no test has
_FAULTS = ("early_reads", "outside", "misaligned", "bank_conflicts", "arrivals")


class Faults(ctypes.Structure):
    """What a GPU would not forgive, by kind (lanes_host.h)."""

    _fields_ = [(name, ctypes.c_uint32) for name in _FAULTS]

    def found(self) -> dict[str, int]:
        """Those that happened."""
        counts = {name: getattr(self, name) for name in _FAULTS}
        return {name: count for name, count in counts.items() if count}


class HostMap(ctypes.Structure):
    """What stands for a tensor map (tiles_host.h)."""

    _fields_ = [
        ("begin", ctypes.c_uint64),
        *((name, ctypes.c_uint32) for name in ("depth", "rows", "box_rows")),
        ("published", ctypes.c_bool),
    ]


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

    def __init__(self, cuts: Iterable[AnyAttention], head_dim: int) -> None:
        """Raises EngineFailure with the compiler's words."""
        cuts = set(cuts)
        direct = {cut for cut in cuts if isinstance(cut, DirectCut)}
        even = {cut for cut in cuts if isinstance(cut, EvenCut)}
        codes = {
            DirectCut: ("direct_attention_host.cc", direct_code(direct, head_dim)),
            EvenCut: ("even_attention_host.cc", even_code(even, head_dim)),
        }
        self._head_dim = head_dim
        self._libraries = {
            kind: ctypes.CDLL(str(compile_host_library(*code))) for kind, code in codes.items()
        }

    def shared_bytes(self, cut: AnyAttention, heads: int) -> int:
        """What the kernel itself says it needs, for groups of so many heads."""
        if isinstance(cut, EvenCut):
            return int(self._kernel(cut)(None, None, None, heads, False, 0, None))
        return int(self._kernel(cut)(None, heads, 0, None))

    def check_shared_bytes(self, cuts: Iterable[AnyAttention]) -> None:
        """Do these kernels need what they are launched with?"""
        for cut in cuts:
            for heads in (1, 5, 8):
                assert self.shared_bytes(cut, heads) == cut.shared_bytes(self._head_dim, heads)

    def _kernel(self, cut: AnyAttention) -> Any:
        return getattr(self._libraries[type(cut)], cut.kernel_name(self._head_dim))

    def run_direct(self, cut: DirectCut, call: AttentionCall, pages: int, seed: int = 1) -> None:
        """For KV of so many blocks; `seed` decides the order of blocks and lanes.

        Fails where lanes wait for good, or a fault happened.
        """
        faults = Faults()
        stuck = self._kernel(cut)(ctypes.byref(call), pages, seed, ctypes.byref(faults))
        assert not stuck
        assert not faults.found()

    def run_even(
        self, cut: EvenCut, call: AttentionCall, pages: int, blocks: int, way: Way = Way()
    ) -> None:
        """The same by so many blocks."""
        entries, box_rows = pages * call.kv_heads * call.block_size, min(PAGE, call.block_size)
        maps = [HostMap(at, self._head_dim, entries, box_rows) for at in (call.keys, call.values)]
        faults = Faults()
        stuck = self._kernel(cut)(
            *map(ctypes.byref, (*maps, call)),
            *(blocks, ctypes.c_bool(way.copies_late), way.seed, ctypes.byref(faults)),
        )
        assert not stuck
        assert not faults.found()


@dataclass(frozen=True, slots=True)
class Launch:
    """What a kernel was launched with."""

    name: str
    blocks: int
    threads: int
    shared_bytes: int
    chained: bool
    cluster: int = 1


class HostGpu:
    """A `Gpu` for the kernels in CUDA C++, whose launches run lane by lane on this host.

    Fails where lanes wait for good, or a fault happened.
    """

    driver: Any = driver

    def __init__(self, way: Way = Way()) -> None:
        self.launches: list[Launch] = []
        self._way = way

    def load(self, source: str, structs: Sequence[Any], *, prologue: str) -> HostProgram:
        """Compiled for the host."""
        library = compile_host_library(source.replace("_gpu.cu", "_host.cc"), prologue)
        return HostProgram(source, ctypes.CDLL(str(library)))

    def call(self, name: str, *arguments: Any) -> Any:
        """A launch is made, a tensor map is a `HostMap`; what else there is does nothing."""
        if name == "cuTensorMapEncodeTiled":
            _, _, begin, (depth, rows), _, (_, box_rows), *_ = arguments
            encoded = driver.CUtensorMap()
            found = HostMap(begin, int(depth), int(rows), int(box_rows))
            ctypes.memmove(int(encoded.getPtr()), ctypes.byref(found), ctypes.sizeof(found))
            return encoded
        if name != "cuLaunchKernelEx":
            return None
        config, function, places, _ = arguments
        sizes = config.gridDimX, config.blockDimX, config.sharedMemBytes
        kinds = driver.CUlaunchAttributeID
        attributes = {attribute.id: attribute.value for attribute in config.attrs}
        chained = kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION in attributes
        together = attributes.get(kinds.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
        cluster = together.clusterDim.x if together is not None else 1
        self.launches.append(Launch(function.name, *sizes, chained=chained, cluster=cluster))
        faults = Faults()
        assert not function.run(places, config.gridDimX, self._way, faults)
        assert not faults.found()
        return None

    def enqueue(self, function: Any, stream: Any, launch: Callable[[], object]) -> None:
        """At once."""
        launch()


@dataclass(frozen=True, slots=True)
class HostProgram:
    """The kernels of one source."""

    source: str
    library: ctypes.CDLL

    def function(self, name: str) -> HostFunction:
        """See `DeviceProgram.function`."""
        return HostFunction(name, self.source, getattr(self.library, name))


@dataclass(frozen=True, slots=True)
class HostFunction:
    """A kernel that takes the parameters of its launch."""

    name: str
    source: str
    call: Any

    def run(self, places: int, blocks: int, way: Way, faults: Faults) -> int:
        """With parameters at `places`, as the driver takes them."""
        late, seen = ctypes.c_bool(way.copies_late), ctypes.byref(faults)
        if self.source == "primed_product_gpu.cu":
            at = (ctypes.c_uint64 * 8).from_address(places)
            arrays = [ctypes.c_void_p.from_address(place) for place in at[:3]]
            sizes = [ctypes.c_uint32.from_address(place) for place in at[3:]]
            return int(self.call(*arrays, *sizes, late, way.seed, seen))
        if self.source == "even_attention_gpu.cu":
            pointers = map(ctypes.c_void_p, (ctypes.c_uint64 * 3).from_address(places))
            return int(self.call(*pointers, blocks, late, way.seed, seen))
        parameters = ctypes.c_uint64.from_address(places).value
        more: tuple[Any, ...] = (_ANY_PAGES,) if "attention" in self.source else ()
        if "experts" in self.source:
            more = (late,)
        return int(self.call(ctypes.c_void_p(parameters), *more, way.seed, seen))


def bfloat16(values: npt.NDArray[Any]) -> npt.NDArray[np.uint16]:
    """Rounded to nearest, ties to even."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def float32(values: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """What bfloat16 values are."""
    return (values.astype(np.uint32) << 16).view(np.float32)
