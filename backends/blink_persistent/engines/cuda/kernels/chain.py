"""Kernels that start while the one before them ends (programmatic dependent launch, Hopper on)."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def join_chain(CHAINED: tl.constexpr):
    """First thing in a kernel: lets the next one be placed, then waits for the one before.

    Nothing may be read or written before it.
    """
    if CHAINED:
        gdc_launch_dependents()
        gdc_wait()
