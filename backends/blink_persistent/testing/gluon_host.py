"""Runs a warp-specialized Gluon kernel on the host: each of its partitions is a thread.

Layouts mean nothing, pointers are flat tensors with offsets, copies end at once, and asynchronous
products are computed when they are waited for, so that a page given back too early is seen. A
barrier that nobody completes ends the program with an error.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch

PATIENCE_S = 20


class Constexpr(int):
    pass


class Pointer:
    def __init__(self, memory: Any, offset: Any = 0) -> None:
        self.memory, self.offset = memory, offset
        self.dtype = SimpleNamespace(element_ty=memory.dtype)

    def __add__(self, more: Any) -> Pointer:
        return Pointer(self.memory, self.offset + more)


class Descriptor:
    """Rows of a matrix, of which a copy takes `box`; what it has no columns for is zero."""

    layout = None

    def __init__(self, matrix: Any, box: tuple[int, int]) -> None:
        self.matrix, self.box = matrix, box
        self.block_type = SimpleNamespace(nbytes=box[0] * box[1] * matrix.element_size())


class Shared:
    def __init__(self, memory: Any) -> None:
        self.memory = memory

    def index(self, place: int) -> Shared:
        return Shared(self.memory[place])

    def permute(self, order: Sequence[int]) -> Shared:
        return Shared(self.memory.permute(order))

    def load(self, layout: object) -> Any:
        return self.memory.clone()

    def store(self, value: Any) -> None:
        self.memory.copy_(value)


class Barrier:
    """As PTX says of mbarrier: a phase ends once all have arrived and all bytes have come."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.count = self.pending = self.bytes = self.phase = 0

    def settle(self, *, arrived: int = 0, more: int = 0) -> None:
        with self.changed:
            self.pending -= arrived
            self.bytes += more
            if self.pending < 0:
                raise RuntimeError("more arrivals than the barrier counts")
            if self.pending == 0 and self.bytes == 0:
                self.phase, self.pending = self.phase + 1, self.count
                self.changed.notify_all()

    def wait(self, parity: int) -> None:
        with self.changed:
            if not self.changed.wait_for(lambda: self.phase & 1 != parity, PATIENCE_S):
                raise TimeoutError(f"a barrier stays in phase {self.phase}")


class Barriers(list[Barrier]):
    def index(self, place: int) -> Barrier:  # type: ignore[override]
        return self[place]


def init(barrier: Barrier, count: int) -> None:
    barrier.count = barrier.pending = count


def copy(descriptor: Descriptor, place: Sequence[int], barrier: Barrier, into: Shared) -> None:
    rows = descriptor.matrix[place[0] : place[0] + descriptor.box[0]]
    into.memory.zero_()
    into.memory[:, : rows.shape[1]] = rows
    barrier.settle(more=-descriptor.block_type.nbytes)


def product(a: Any, b: Shared, into: Any, *, use_acc: bool = True, is_async: bool = False) -> Any:
    def compute() -> Any:
        return a @ b.memory + (into if use_acc else 0)

    return compute if is_async else compute()


def wait_for(outstanding: int, deps: Sequence[Any]) -> Any:
    found = [dep() if callable(dep) else dep for dep in deps]
    return found[0] if len(found) == 1 else tuple(found)


def load(pointer: Pointer, mask: Any = None, other: float = 0) -> Any:
    if not isinstance(pointer.offset, torch.Tensor):
        return int(pointer.memory[pointer.offset])
    if mask is None:
        return pointer.memory[pointer.offset]
    offset, mask = torch.broadcast_tensors(pointer.offset, mask)
    found = torch.full(offset.shape, other, dtype=pointer.memory.dtype)
    found[mask] = pointer.memory[offset[mask]]
    return found


def store(pointer: Pointer, value: Any, mask: Any) -> None:
    offset, mask = torch.broadcast_tensors(pointer.offset, mask)
    pointer.memory[offset[mask]] = value[mask]


def specialize(parts: Sequence[tuple[Callable[..., None], Any]], *_: object) -> None:
    with ThreadPoolExecutor(len(parts)) as pool:
        for running in [pool.submit(function, *given) for function, given in parts]:
            running.result()


def reduced(whole: Callable[[Any], Any], along: Callable[[Any, int], Any]) -> Callable[..., Any]:
    return lambda x, axis: int(whole(x)) if x.ndim == 1 else along(x, axis)


class Language(SimpleNamespace):
    """What stands in for `gluon.language`, for program `place` of `grid`."""

    def __init__(self) -> None:
        self.place, self.grid = [0, 0], [1, 1]
        super().__init__(
            constexpr=Constexpr,
            float32=torch.float32,
            int64=torch.int64,
            load=load,
            store=store,
            where=torch.where,
            exp2=torch.exp2,
            zeros_like=torch.zeros_like,
            static_range=range,
            warp_specialize=specialize,
            arange=lambda begin, end, layout: torch.arange(begin, end),
            zeros=lambda shape, dtype, layout: torch.zeros(*shape, dtype=dtype),
            full=lambda shape, value, dtype, layout: torch.full(shape, value, dtype=dtype),
            convert_layout=lambda value, layout: value,
            max=reduced(torch.max, lambda x, axis: x.amax(axis)),
            sum=reduced(torch.sum, lambda x, axis: x.sum(axis)),
            maximum=lambda a, b: torch.maximum(a, b) if isinstance(a, torch.Tensor) else max(a, b),
            minimum=min,
            cdiv=lambda a, b: -(-a // b),
            associative_scan=lambda x, axis, combine: x.cumsum(axis),
            program_id=lambda axis: self.place[axis],
            num_programs=lambda axis: self.grid[axis],
            thread_barrier=lambda: None,
            allocate_shared_memory=shared,
            **dict.fromkeys(("SliceLayout", "BlockedLayout", "DotOperandLayout"), no_layout),
            NVMMADistributedLayout=no_layout,
        )


def no_layout(*_: object) -> None: ...


def shared(dtype: Any, shape: Sequence[int], layout: object) -> Any:
    if dtype == torch.int64:
        return Barriers(Barrier() for _ in range(shape[0]))
    return Shared(torch.full(tuple(shape), torch.nan, dtype=dtype))


def load_kernel(path: Path) -> tuple[ModuleType, Language]:
    """The module at `path`, with what it imports of Triton replaced."""

    def jit(function: Any = None, **_: object) -> Any:
        return function if function is not None else jit

    language = Language()
    mbarrier = SimpleNamespace(
        MBarrierLayout=no_layout,
        init=init,
        wait=Barrier.wait,
        arrive=lambda barrier, count: barrier.settle(arrived=count),
        expect=lambda barrier, nbytes: barrier.settle(arrived=1, more=nbytes),
    )
    hopper: dict[str, Any] = {
        "mbarrier": mbarrier,
        "tma": SimpleNamespace(async_copy_global_to_shared=copy),
        "warpgroup_mma": product,
        "warpgroup_mma_wait": wait_for,
        "fence_async_shared": lambda: None,
    }
    stands_in: dict[str, dict[str, Any]] = {
        "triton": {},
        "triton.experimental": {"gluon": SimpleNamespace(jit=jit)},
        "triton.experimental.gluon": {"language": language},
        "triton.experimental.gluon.language.nvidia.hopper": hopper,
        "triton.language.extra.cuda": dict.fromkeys(
            ("gdc_launch_dependents", "gdc_wait"), no_layout
        ),
    }
    modules = {name: SimpleNamespace(**parts) for name, parts in stands_in.items()}
    spec = importlib.util.spec_from_file_location(f"{path.stem}_on_host", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, modules):
        spec.loader.exec_module(module)
    return module, language
