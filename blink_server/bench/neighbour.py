"""A noisy neighbour: `python -m blink_server.bench.neighbour KIND CORE PARENT`, until it is killed.

It dies with the thread that started it, however that ends.
"""

from __future__ import annotations

import bz2
import ctypes
import os
import signal
import sys
from collections.abc import Callable

import numpy as np

_PR_SET_PDEATHSIG = 1
_BZIP2_BYTES = 6_000_000
_SWEEP_BYTES = 256 << 20


def _bzip2() -> Callable[[], object]:
    """Compression of a block that is larger than a core's own caches."""
    block = np.random.default_rng(0).integers(0, 32, _BZIP2_BYTES, np.uint8).tobytes()
    return lambda: bz2.compress(block)


def _memory() -> Callable[[], object]:
    """Reading and writing of more memory than a last-level cache holds."""
    swept = np.ones(_SWEEP_BYTES // 8, np.int64)
    return lambda: np.add(swept, 1, out=swept)


KINDS: dict[str, Callable[[], Callable[[], object]]] = {"bzip2": _bzip2, "memory": _memory}


def _die_with(parent: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # it ended before the call
        sys.exit(1)


def main(kind: str, core: str, parent: str) -> None:
    """Work on one core for ever, after a line that says "ready"."""
    _die_with(int(parent))
    os.sched_setaffinity(0, {int(core)})
    work = KINDS[kind]()
    print("ready", flush=True)
    while True:
        work()


if __name__ == "__main__":
    main(*sys.argv[1:])
