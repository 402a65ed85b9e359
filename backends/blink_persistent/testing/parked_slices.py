"""Slices in which a scheduler on the GPU stands still, and how long each took."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from blink_persistent.testing.device_harness import RunningScheduler

_MACHINERY = ("contextlib", "parked_slices", "_python_dispatch")


class Slice(NamedTuple):
    """`wait_s` until the running step had ended, `held_s` from then until it went on."""

    what: str
    wait_s: float
    held_s: float


class ParkedSlices:
    """An `exclusive` for `ProvisionLimits` beside one running scheduler; keeps all `slices`."""

    def __init__(self, scheduler: RunningScheduler) -> None:
        self._scheduler = scheduler
        self.slices: list[Slice] = []

    @contextmanager
    def __call__(self) -> Iterator[None]:
        what, asked = _caller(), time.perf_counter()
        self._scheduler.park()
        parked = time.perf_counter()
        try:
            yield
        finally:
            self._scheduler.launch()
            left = time.perf_counter()
            self.slices.append(Slice(what, parked - asked, left - parked))


def _caller() -> str:
    """Who entered the slice: its function, and the operation where it is PyTorch's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and any(name in frame.f_code.co_filename for name in _MACHINERY):
        frame = frame.f_back
    operation = frame.f_locals.get("func")
    return str(operation) if operation is not None else frame.f_code.co_name
