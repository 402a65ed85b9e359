"""How attention whose KV goes straight into registers is cut (direct_attention.h)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from blink_persistent.engines.cuda.kernels.cuts.attention_call import MOST_GROUP

TILE = 16  # entries that a warp takes at a time
MOST_SPLITS = 64
MOST_BLOCKS = 16  # of a cluster


@dataclass(frozen=True, slots=True)
class DirectCut:
    """A block's `warps` take 16 entries at a time; a multiprocessor has registers for `resident`.

    A row's entries are split over blocks so that there are `programs` a multiprocessor,
    and `most` of them at most. `clustered`: they are blocks of a cluster, which sum their splits
    without memory between them.
    """

    warps: int = 4
    programs: int = 1
    resident: int = 3
    clustered: bool = False
    most: int = MOST_SPLITS

    def splits(self, rows: int, kv_heads: int, capacity: int, processors: int) -> int:
        """Blocks along a row's entries."""
        wanted = self.programs * processors // (rows * kv_heads)
        splits = max(1, min(wanted, capacity // (TILE * self.warps), self.most))
        if not self.clustered:
            return splits
        return 1 << min(splits, MOST_BLOCKS).bit_length() - 1

    @property
    def threads(self) -> int:
        """Of a block."""
        return 32 * self.warps

    def shared_bytes(self, head_dim: int, heads: int) -> int:
        """Dynamic shared memory of a block, for groups of so many heads."""
        received = heads * (head_dim + 2 * MOST_BLOCKS) + 32 * (MOST_BLOCKS - 1)
        floats = MOST_GROUP + self.warps * heads * (head_dim + 3)
        floats += received if self.clustered else 0
        return 2 * head_dim * (MOST_GROUP + 2) + 8 + 4 * floats

    def kernel_name(self, head_dim: int) -> str:
        """Of its function."""
        kind = "cluster" if self.clustered else "direct"
        return f"blink_{kind}_{self.warps}_{head_dim}_{self.resident}"

    def definition(self, head_dim: int) -> str:
        """Its line of BLINK_DIRECTS."""
        sizes = f"{self.warps}, {head_dim}, {self.resident}, {str(self.clustered).lower()}"
        return f"BLINK_DIRECT({self.kernel_name(head_dim)}, {sizes})"


def direct_code(cuts: Iterable[DirectCut], head_dim: int) -> str:
    """The text that stands before direct_attention_gpu.cu, for these cuts."""
    lines = sorted({cut.definition(head_dim) for cut in cuts})
    return "".join(f"{line} \\\n" for line in ("#define BLINK_DIRECTS", *lines)) + "\n"
