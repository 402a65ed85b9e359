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
    """Compression of a block of text-like bytes, larger than a core's own caches."""
    letters = np.random.default_rng(0).zipf(1.5, _BZIP2_BYTES) % 64 + 32
    block = letters.astype(np.uint8).tobytes()
    return lambda: bz2.compress(block)


def _memory() -> Callable[[], object]:
    """Reading and writing of more memory than a last-level cache holds."""
    swept = np.zeros(_SWEEP_BYTES // 8, np.int64)
    return lambda: np.add(swept, 1, out=swept)


KINDS: dict[str, Callable[[], Callable[[], object]]] = {"bzip2": _bzip2, "memory": _memory}


def _die_with(parent: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # it ended before the call
        sys.exit(1)


def main(kind: str, core: str, parent: str) -> None:
    """Work on one core for ever; says "ready" once the first round is done."""
    _die_with(int(parent))
    os.sched_setaffinity(0, {int(core)})
    work = KINDS[kind]()
    work()
    print("ready", flush=True)
    while True:
        work()


if __name__ == "__main__":
    main(*sys.argv[1:])
