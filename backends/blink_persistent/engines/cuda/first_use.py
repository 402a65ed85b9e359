"""Loads of kernels that PyTorch and Triton make on their own, in slices of `exclusive`.

A library loads a kernel when it is first launched, and both wait for every resident scheduler.
Inside `loading_in_slices`, what is used for the first time has a slice to itself until it has run:
a PyTorch operation that has not run on the GPU with such arguments, or not at all on this thread,
and a compiled Triton kernel that is loaded. Compilation, and what has run before, happens beside
the schedulers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
import triton
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Exclusive = Callable[[], AbstractContextManager[None]]
Slice = Callable[[str], AbstractContextManager[None]]

log = logging.getLogger(__name__)

LONG_SLICE_MS = 10.0  # what takes longer is named in the log
_loaded: set[tuple[object, ...]] = set()  # operations with their arguments, by this process
_here = threading.local()  # `operations` of a thread: libraries keep their handles by thread
_LAUNCH_NOTHING = frozenset(
    [
        "alias",
        "as_strided",
        "detach",
        "empty",
        "empty_strided",
        "expand",
        "permute",
        "select",
        "slice",
        "split",
        "split_with_sizes",
        "t",
        "transpose",
        "unbind",
        "unsqueeze",
        "view",
    ]
)


def finish_stream() -> None:
    """Wait for this thread's stream, and no other."""
    torch.cuda.current_stream().synchronize()


@contextmanager
def loading_in_slices(
    exclusive: Exclusive,
    *,
    device: str = "cuda",
    finish: Callable[[], None] = finish_stream,
) -> Iterator[None]:
    """On this thread, until it is left; not nested.

    `device` is the type of the GPU's tensors; `finish` waits for what was enqueued.
    """

    @contextmanager
    def one_slice(what: str) -> Iterator[None]:
        finish()
        with exclusive():
            began = time.monotonic()
            yield
            finish()
            took = 1e3 * (time.monotonic() - began)
        if took > LONG_SLICE_MS:
            log.info("the first use of %s took %.1f ms", what, took)

    with ExitStack() as kernel, _Operations(one_slice, device):
        thread = threading.get_ident()

        def begin(_module: object, _function: object, name: str, *_: object) -> None:
            if threading.get_ident() == thread:
                kernel.enter_context(one_slice(name))

        def end(*_: object) -> None:
            if threading.get_ident() == thread:
                kernel.pop_all().close()

        hooks = triton.knobs.runtime
        hooks.kernel_load_start_hook.add(begin)
        hooks.launch_exit_hook.add(end)
        try:
            yield
        finally:
            hooks.kernel_load_start_hook.remove(begin)
            hooks.launch_exit_hook.remove(end)


class _Operations(TorchDispatchMode):  # type: ignore[misc]
    """Runs each operation on the GPU in a slice of its own that this thread has not run before."""

    def __init__(self, one_slice: Slice, device: str) -> None:
        super().__init__()
        self._one_slice, self._device = one_slice, device
        if not hasattr(_here, "operations"):
            _here.operations = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: to skip PyTorch's compiler, it is imported, which takes seconds."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        leaves, name = tree_leaves((args, kwargs)), func.overloadpacket.__name__
        if name in _LAUNCH_NOTHING or not self._concern(leaves):
            return func(*args, **kwargs)
        if name == "copy_" and _moves_bytes(*args[:2]):
            return func(*args, **kwargs)
        use = (func, *map(_what_it_is, leaves))
        if use in _loaded and func in _here.operations:
            return func(*args, **kwargs)
        with self._one_slice(str(func)):
            result = func(*args, **kwargs)
        _loaded.add(use)
        _here.operations.add(func)
        return result

    def _concern(self, leaves: list[object]) -> bool:
        """Is any of an operation's arguments on the GPU, or the GPU itself?"""
        devices = (leaf.device if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves)
        return any(isinstance(at, torch.device) and at.type == self._device for at in devices)


def _moves_bytes(to: torch.Tensor, source: torch.Tensor) -> bool:
    """Is the copy of weights from the host one of the driver's, which launches nothing?"""
    alike = to.dtype == source.dtype and to.is_contiguous() and source.is_contiguous()
    return bool(alike and source.device.type == "cpu")


def _what_it_is(argument: object) -> object:
    """All of an argument by which a library may choose its kernel."""
    if isinstance(argument, torch.Tensor):
        return argument.dtype, argument.device, tuple(argument.shape), argument.stride()
    return type(argument) if isinstance(argument, torch.Generator) else argument
