"""How attention whose blocks have even shares of the KV is cut (even_attention.h)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from blink_persistent.engines.cuda.kernels.cuts.attention_call import MOST_GROUP
from blink_persistent.engines.cuda.kernels.cuts.wide_cut import ALIGNMENT

PAGE = 64  # entries that are copied at once
TEAM = PAGE // 16  # warps that share a page
MOST_PAIRS = 8  # for each of whose barriers a warp has a lane
SHARED_BYTES = 228 << 10  # of a multiprocessor
RESERVED_BYTES = 1 << 10  # of it, for each block
EVEN = 16


@dataclass(frozen=True, slots=True)
class EvenCut:
    """`warps` of a block multiply, four at a page; `pairs` pages of keys and of values are in
    shared memory or on their way, as many for each four warps. A multiprocessor holds `resident`
    blocks.
    """

    warps: int
    pairs: int
    resident: int

    def fits(self, head_dim: int, heads: int) -> bool:
        """Is there such a kernel for groups of so many heads, and room for its blocks?"""
        block = self.shared_bytes(head_dim, heads) + ALIGNMENT + RESERVED_BYTES
        return (
            self.warps % TEAM == 0
            and self.pairs % (self.warps // TEAM) == 0
            and self.pairs <= MOST_PAIRS
            and self.resident * block <= SHARED_BYTES
        )

    def blocks(self, processors: int) -> int:
        """As many as are resident, but for a few: a multiple of `EVEN`.

        Shares of rows that are as long as each other are whole groups then, or groups whole shares,
        more often, and what is split has to be added.
        """
        room = self.resident * processors
        return room // EVEN * EVEN or room

    @property
    def threads(self) -> int:
        """Of a block: those that multiply, and a warp that copies."""
        return 32 * self.warps + 32

    def shared_bytes(self, head_dim: int, heads: int) -> int:
        """Shared memory of a block for groups of so many heads, without what aligns it."""
        entries = 2 * self.pairs * PAGE + 2 * (MOST_GROUP + 2)
        barriers = 4 * self.pairs
        floats = 4 + MOST_GROUP + self.warps * heads * (head_dim + 6)
        return 2 * head_dim * entries + 8 * barriers + 4 * floats

    def kernel_name(self, head_dim: int) -> str:
        """Of its function."""
        return f"blink_even_{self.warps}_{head_dim}_{self.pairs}_{self.resident}"

    def definition(self, head_dim: int) -> str:
        """Its line of BLINK_EVENS."""
        name = self.kernel_name(head_dim)
        return f"BLINK_EVEN({name}, {self.warps}, {head_dim}, {self.pairs}, {self.resident})"


def even_code(cuts: Iterable[EvenCut], head_dim: int) -> str:
    """The text that stands before even_attention_gpu.cu, for these cuts."""
    lines = sorted({cut.definition(head_dim) for cut in cuts})
    return "".join(f"{line} \\\n" for line in ("#define BLINK_EVENS", *lines)) + "\n"
