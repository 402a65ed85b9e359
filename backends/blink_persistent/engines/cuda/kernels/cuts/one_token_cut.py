"""How the experts of a step's only token are cut, and their kernels' text and parameters
(expert_gate.h, expert_sum.h)."""

from __future__ import annotations

import ctypes
from ctypes import c_uint32, c_uint64
from dataclasses import dataclass

from blink_persistent.engines.cuda.kernels.cuts.primed_cut import PrimedCut

SUM_FEATURES = 16  # of a block of the sum
SUM_DEPTH = 128  # inner elements of its step


@dataclass(frozen=True, slots=True)
class OneTokenCut:
    """`gate` is of gate and up, its blocks are those of one expert.

    `sum_stages`: steps of down that a warp has on their way. `scored`: experts whose scores a
    program has that also computes the norm.
    """

    gate: PrimedCut
    sum_stages: int
    scored: int

    def fits(self, hidden: int, inner: int) -> bool:
        """Can experts of these sizes be cut so?"""
        cut = self.gate.gated and self.gate.splits == self.gate.tiles == 1
        return (
            cut
            and self.gate.fits(inner, hidden)
            and hidden % SUM_FEATURES == inner % SUM_DEPTH == 0
        )

    def sum_shared_bytes(self, chosen: int, inner: int) -> int:
        """Shared memory of a block of the sum: weights, activations, and results of each warp."""
        weights = 2 * SUM_FEATURES * SUM_DEPTH * self.sum_stages
        return chosen * (weights + 2 * inner + 4 * SUM_FEATURES)


class ExpertCall(ctypes.Structure):
    """The kernels' parameters (expert_choice.h)."""

    _fields_ = [
        *((name, c_uint64) for name in ("x", "weight", "out", "scores")),
        *((name, c_uint32) for name in ("experts", "chosen", "size", "depth", "blocks")),
    ]


def one_token_code(cut: OneTokenCut, chosen: int) -> str:
    """The text that stands before one_token_experts_gpu.cu."""
    gate = cut.gate
    values = {
        **{"GATE_WARPS": gate.warps, "GATE_WINDOWS": gate.windows, "GATE_STAGES": gate.stages},
        **{"CHOSEN": chosen, "SUM_STAGES": cut.sum_stages},
    }
    return "".join(f"#define BLINK_{name} {value}\n" for name, value in values.items())
