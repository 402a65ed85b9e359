"""The schedulers that are resident on one GPU, and how to make all of them stand still."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from blink_persistent.gpu.driver import CudaError
from blink_persistent.gpu_runner.service import GpuLost
from blink_persistent.ring import Condition

log = logging.getLogger(__name__)


class Resident(Protocol):
    """A scheduler on the GPU, as `DeviceScheduler` is one."""

    def launch(self) -> None: ...
    def ask_to_park(self) -> None: ...
    def park(self, timeout_s: float = ...) -> None: ...
    def stop(self, timeout_s: float = ...) -> None: ...
    def condition(self) -> Condition: ...


class Residents:
    """Any thread with the GPU's context may call; what fails here is the GPU's end (`GpuLost`).

    `parks` counts how often all had to stand still. In seconds: `longest_park`, from the asking to
    the last one's going on, with the steps that had to end first; `longest_rest`, without them.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._depth = 0  # of `exclusive`
        self._step_seconds: dict[Resident, float] = {}
        self._words = threading.Lock()  # no call of CUDA is made under it
        self.parks = 0
        self.longest_park = 0.0
        self.longest_rest = 0.0

    def add(self, resident: Resident, *, step_seconds: float) -> None:
        """Launch it. None of its steps takes longer than `step_seconds`, unless it hangs."""
        with self._lock:
            with self.exclusive(), _fatal("launch"):  # a first launch may wait for others
                resident.launch()
            with self._words:
                self._step_seconds[resident] = step_seconds

    def remove(self, resident: Resident) -> None:
        """Stop it; nothing where it is not here."""
        with self._lock, _fatal("stop"):
            with self._words:
                seconds = self._step_seconds.pop(resident, None)
            if seconds is not None:
                resident.stop(seconds)

    @contextmanager
    def running(self) -> Iterator[None]:
        """None of them stands still inside."""
        with self._lock:
            yield

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """All of them stand still inside, and go on afterwards, but for those that had failed."""
        with self._lock:
            began = time.monotonic()
            if self._depth == 0:
                self._park()
            parked = time.monotonic()
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if self._depth == 0 and self._step_seconds:
                    self._resume()
                    now = time.monotonic()
                    self._count(now - began, now - parked)

    def let_others_in(self) -> None:
        """Have all stand still for a moment, also while a call of CUDA waits for them.

        Such a call holds up all others, that of a thread which has entered this object among them.
        So they are asked before anything is waited for. Without one, nothing can wait.
        """
        with self._words:
            if not self._step_seconds:
                return
        self._ask()
        with self.exclusive():
            pass

    def _ask(self) -> None:
        with self._words:
            for resident in self._step_seconds:
                resident.ask_to_park()

    def _park(self) -> None:
        with _fatal("park"):
            self._ask()
            for resident, seconds in self._step_seconds.items():
                resident.park(seconds)

    def _resume(self) -> None:
        with _fatal("resume"):
            for resident in self._step_seconds:
                if resident.condition() is Condition.PARKED:
                    resident.launch()

    def _count(self, park: float, rest: float) -> None:
        self.parks += 1
        if park > self.longest_park or rest > self.longest_rest:
            self.longest_park = max(park, self.longest_park)
            self.longest_rest = max(rest, self.longest_rest)
            log.info(
                "the longest of %d parks took %.1f ms, without the steps before them %.1f ms; "
                "now %.1f and %.1f ms for %s",
                self.parks,
                1e3 * self.longest_park,
                1e3 * self.longest_rest,
                1e3 * park,
                1e3 * rest,
                _caller(),
            )


def _caller() -> str:
    """The function, and its file, in which `exclusive` was entered that is being left."""
    frame = sys._getframe()
    while frame.f_back and frame.f_code.co_filename in (__file__, contextlib.__file__):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}"


@contextmanager
def _fatal(what: str) -> Iterator[None]:
    """Nobody can say any more what runs on the GPU once one of these calls has failed."""
    try:
        yield
    except (CudaError, TimeoutError) as error:
        raise GpuLost(f"cannot {what} a scheduler on the GPU: {error}") from error
