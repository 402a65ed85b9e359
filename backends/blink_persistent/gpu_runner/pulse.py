"""Lets calls of CUDA through that wait for resident schedulers although nobody foresaw it.

The engine enters `exclusive` around calls that wait. A library may make one all the same: it would
wait for ever, and any other call of the process with it.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from blink_persistent.gpu_runner.residents import Residents
from blink_persistent.gpu_runner.service import GpuLost
from blink_persistent.thread_names import helper_name

log = logging.getLogger(__name__)

PULSE_SECONDS = 0.25
SUSPICIOUS_SECONDS = 0.05  # a pulse takes milliseconds, unless a call was waiting for it
_DEEPEST = 6  # frames of a suspicious thread


@contextmanager
def pulsing(residents: Residents, make_current: Callable[[], None]) -> Iterator[None]:
    """All schedulers stand still for a moment where nobody has asked them to for 250 ms.

    `make_current` gives a thread the GPU's context. A call that was found waiting is logged with
    the place it comes from.
    """
    stop = threading.Event()
    thread = threading.Thread(
        target=_pulse, args=(residents, make_current, stop), name=helper_name("pulse"), daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _pulse(residents: Residents, make_current: Callable[[], None], stop: threading.Event) -> None:
    try:
        make_current()
        parks = residents.parks
        while not stop.wait(PULSE_SECONDS):
            if residents.parks == parks:
                _let_others_in(residents)
            parks = residents.parks
    except GpuLost as lost:  # whoever uses a scheduler next finds the same
        log.critical("%s", lost)


def _let_others_in(residents: Residents) -> None:
    places = _places()
    began = time.monotonic()
    residents.let_others_in()
    seconds = time.monotonic() - began
    if seconds > SUSPICIOUS_SECONDS:
        log.warning("%.0f ms until all stood still; meanwhile: %s", 1e3 * seconds, places)


def _places() -> str:
    """Where the other threads are, those that may be in a call of CUDA."""
    own = threading.get_ident()
    found = []
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        name = names.get(ident, "")
        if ident == own or name in ("MainThread", "agent offer", "leases", "pulse"):
            continue
        calls = traceback.extract_stack(frame)[-_DEEPEST:]
        found.append(f"{name}: " + " > ".join(f"{c.name}:{c.lineno}" for c in calls))
    return "; ".join(found)
