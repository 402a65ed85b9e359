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


@triton.jit
def let_next_in(CHAINED: tl.constexpr):
    """The first half of `join_chain`, for a kernel that reads something meanwhile.

    Between the halves nothing may be written, and read only what no kernel of a step writes:
    weights and the scheduler's inputs. (expert_sum.h reads what the kernel two ahead has written,
    which has ended: the one ahead lets it in behind its own wait.)
    """
    if CHAINED:
        gdc_launch_dependents()


@triton.jit
def await_previous(CHAINED: tl.constexpr):
    """The second half of `join_chain`."""
    if CHAINED:
        gdc_wait()
