"""The core of a host-driven scheduler's thread, how it waits there, and who else wants it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from blink_persistent.gpu.driver import cuda_driver

HOG = "a = bytearray(1 << 26)\nprint('ready', flush=True)\nwhile True: b = bytes(a)"
CONTROL_CORE = max(os.sched_getaffinity(0))


def set_context_flags(blocks: bool) -> None:
    """How a thread waits that synchronizes: in this thread's context, or the one made next."""
    driver = cuda_driver()
    kinds = driver.CUctx_flags
    flags = int(kinds.CU_CTX_SCHED_BLOCKING_SYNC if blocks else kinds.CU_CTX_SCHED_SPIN)
    _, context = driver.cuCtxGetCurrent()
    if int(context):
        (status,) = driver.cuCtxSetFlags(flags)
    else:
        (status,) = driver.cuDevicePrimaryCtxSetFlags(driver.cuDeviceGet(0)[1], flags)
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"the context's flags cannot be set: {status.name}")


@contextmanager
def bound_to(cores: set[int]) -> Iterator[None]:
    """This thread, and those that it starts, on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def hog(wanted: bool) -> Iterator[None]:
    """A process that takes the control's core, if wanted."""
    if not wanted:
        yield
        return
    with bound_to({CONTROL_CORE}):
        process = subprocess.Popen([sys.executable, "-c", HOG], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield
    finally:
        process.kill()
        process.wait()
