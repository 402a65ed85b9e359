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
    """An `exclusive` for `ProvisionLimits` beside one scheduler; keeps all `slices` of it.

    The scheduler may be given later. While it does not run, slices are entered and not kept. One
    whose memory is given back in these slices is left out before, by `beside`.
    """

    def __init__(self, scheduler: RunningScheduler | None = None) -> None:
        self._scheduler = scheduler
        self.slices: list[Slice] = []

    @contextmanager
    def beside(self, scheduler: RunningScheduler) -> Iterator[None]:
        """Inside, this scheduler stands still in the slices; afterwards none does."""
        self._scheduler = scheduler
        try:
            yield
        finally:
            self._scheduler = None

    @contextmanager
    def __call__(self) -> Iterator[None]:
        scheduler = self._scheduler
        if scheduler is None or scheduler.is_idle():
            yield
            return
        what, asked = _caller(), time.perf_counter()
        scheduler.park()
        parked = time.perf_counter()
        try:
            yield
        finally:
            scheduler.launch()
            left = time.perf_counter()
            self.slices.append(Slice(what, parked - asked, left - parked))


def _caller() -> str:
    """Who entered the slice: its function, and the operation where it is PyTorch's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and any(name in frame.f_code.co_filename for name in _MACHINERY):
        frame = frame.f_back
    operation = frame.f_locals.get("func")
    return str(operation) if operation is not None else frame.f_code.co_name
