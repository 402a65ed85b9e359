"""How attention in CUDA C++ is cut, and its kernel's text and parameters (primed_attention.h)."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from ctypes import c_float, c_uint32, c_uint64
from dataclasses import dataclass

from blink_server.importers.checkpoint import Architecture

MOST_GROUP = 8  # heads that share a key and a value
HEAD_DIMS = (64, 128)
MOST_SPLITS = 64
TILE = 16  # entries that a warp takes at a time


class AttentionCall(ctypes.Structure):
    """The kernel's parameters (`AttentionCall` of attention_call.h)."""

    _fields_ = [
        *((name, c_uint64) for name in ("qkv", "bias", "q_norm", "k_norm", "cos", "sin")),
        *((name, c_uint64) for name in ("lengths", "tables")),
        *((name, c_uint64) for name in ("keys", "values", "partial", "log_sums", "arrived", "out")),
        *((name, c_float) for name in ("scale", "epsilon")),
        *((name, c_uint32) for name in ("parts", "rows", "heads", "kv_heads")),
        *((name, c_uint32) for name in ("max_blocks", "block_size", "splits")),
    ]


@dataclass(frozen=True, slots=True)
class AttentionCut:
    """A block's `warps` each take tiles of 16 entries, of which `stages` are on their way.

    A row's entries are split over blocks so that a multiprocessor holds `programs` of them.
    """

    warps: int = 4
    stages: int = 2
    programs: int = 2

    def splits(self, rows: int, kv_heads: int, capacity: int, processors: int) -> int:
        """Blocks along a row's entries, so that all rows together fill the processors."""
        wanted = self.programs * processors // (rows * kv_heads)
        return max(1, min(wanted, capacity // (TILE * self.warps), MOST_SPLITS))

    @property
    def threads(self) -> int:
        """Of a block."""
        return 32 * self.warps

    def shared_bytes(self, head_dim: int) -> int:
        """Dynamic shared memory of a block."""
        return 2 * head_dim * (self.warps * self.stages * 2 * TILE + MOST_GROUP + 2)

    def kernel_name(self, head_dim: int) -> str:
        """Of its function."""
        return f"blink_attention_{self.warps}_{head_dim}_{self.stages}"

    def definition(self, head_dim: int) -> str:
        """Its line of BLINK_ATTENTIONS."""
        name = self.kernel_name(head_dim)
        return f"BLINK_ATTENTION({name}, {self.warps}, {head_dim}, {self.stages})"


def attention_code(cuts: Iterable[AttentionCut], head_dim: int) -> str:
    """The text that stands before primed_attention_gpu.cu, for these cuts."""
    lines = sorted({cut.definition(head_dim) for cut in cuts})
    return "".join(f"{line} \\\n" for line in ("#define BLINK_ATTENTIONS", *lines)) + "\n"


def likely_attention(row_tile: int) -> AttentionCut:
    """For so many rows of `ROW_TILES`: the best of six in Llama-3-8B's steps of 1 and 16 rows.

    Many rows' blocks have to be resident all at once; none was as fast as Triton's kernels.
    """
    if row_tile <= 16:
        return AttentionCut(warps=8, stages=1, programs=2)
    return AttentionCut(warps=4, stages=1, programs=4)


def is_attended(architecture: Architecture) -> bool:
    """Is there such a kernel for a model's heads?"""
    group = architecture.heads // architecture.kv_heads
    return architecture.head_dim in HEAD_DIMS and group <= MOST_GROUP
