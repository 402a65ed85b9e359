"""How a product on the tensor cores is cut, and its kernel's name and text (wide_product.h)."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass

WINDOW = 64  # inner elements whose rows of a tile lie together in shared memory
BOX_ROWS = 256  # that a bulk copy takes at most
BARRIER_BYTES = 1024
ALIGNMENT = 1024
"""Of shared memory: as much of it as is left out may come before what a kernel uses."""


@dataclass(frozen=True, slots=True)
class WideCut:
    """`blocks` times `splits` blocks, at most one a multiprocessor, in clusters of `cluster`,
    one or two.

    A block computes tiles of `features`, in steps of `windows` * 64 inner elements, of which
    `stages` are in shared memory or on their way, by `groups` warpgroups. `gated`: for gate and up
    with SwiGLU. Without `blocks` there is one for each tile.
    """

    features: int
    splits: int = 1
    windows: int = 2
    stages: int = 4
    groups: int = 2
    cluster: int = 1
    gated: bool = False
    blocks: int | None = None

    def fits(self, size: int, depth: int) -> bool:
        """Can a product with [size, depth] weights be cut so? `size`: of the output."""
        return (
            depth % (self.splits * self.windows * WINDOW) == 0
            and self.box_rows % 8 == 0
            and self.features % self.box_rows == 0
            and self.cluster in (1, 2)
            and self.blocks_for(size) % self.cluster == 0
            # Rows of the gate's last tile that are up's would be read for nothing.
            and (not self.gated or size % self.features == 0)
            and (not self.gated or self.features <= 64 * self.groups)
        )

    def blocks_for(self, size: int) -> int:
        """Of a split."""
        return self.blocks or -(-size // self.features)

    @property
    def tile_rows(self) -> int:
        """Rows of the weight that a tile has."""
        return self.features * (2 if self.gated else 1)

    @property
    def box_rows(self) -> int:
        """That one bulk copy takes: a tile's, or as many a number of times."""
        return self.features // -(-self.features // BOX_ROWS)

    @property
    def threads(self) -> int:
        """Of a block: those that multiply, and a warp that copies."""
        return 128 * self.groups + 32

    def shared_bytes(self, row_tile: int) -> int:
        """Shared memory of a block, for so many rows of `ROW_TILES`, without what aligns it."""
        multiplied = (
            64 * self.groups * (1 if self.gated else -(-self.features // (64 * self.groups)))
        )
        reached = multiplied + (self.features if self.gated else 0)
        beyond = max(0, reached - self.tile_rows - self.windows * row_tile)
        stage = self.windows * (self.tile_rows + row_tile)
        return BARRIER_BYTES + 2 * WINDOW * (self.stages * stage + beyond)


class WideProductCall(ctypes.Structure):
    """`WideProductCall` of wide_product.h."""

    _fields_ = [
        ("out", ctypes.c_uint64),
        ("rows", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("share", ctypes.c_uint32),
        ("blocks", ctypes.c_uint32),
    ]


def wide_call(cut: WideCut, out: int, sizes: tuple[int, int, int]) -> WideProductCall:
    """For `sizes` rows, output features, inner elements, to the address `out`."""
    rows, size, depth = sizes
    return WideProductCall(
        out=out, rows=rows, size=size, share=depth // cut.splits, blocks=cut.blocks_for(size)
    )


@dataclass(frozen=True, slots=True)
class WideKernel:
    """What of a product is known when its kernel is compiled."""

    features: int
    row_tile: int
    windows: int
    stages: int
    groups: int
    cluster: int
    gated: bool

    @classmethod
    def of(cls, cut: WideCut, row_tile: int) -> WideKernel:
        """The kernel that computes up to `row_tile` rows, a number of `ROW_TILES`."""
        sizes = cut.windows, cut.stages, cut.groups, cut.cluster
        return cls(cut.features, row_tile, *sizes, gated=cut.gated)

    @property
    def name(self) -> str:
        """Of its function."""
        sizes = self.features, self.row_tile, self.windows, self.stages, self.groups, self.cluster
        return "_".join(("blink_wide_gated" if self.gated else "blink_wide", *map(str, sizes)))

    @property
    def definition(self) -> str:
        """Its line of BLINK_PRODUCTS."""
        rows = self.features * (2 if self.gated else 1)
        sizes = rows, self.row_tile, self.windows, self.stages, self.groups, self.cluster
        written = "true, uint16_t" if self.gated else "false, float"
        return f"BLINK_PRODUCT({self.name}, {', '.join(map(str, sizes))}, {written})"


def wide_code(kernels: Iterable[WideKernel]) -> str:
    """The text that stands before wide_product_gpu.cu, for these kernels."""
    lines = sorted({kernel.definition for kernel in kernels})
    return "".join(f"{line} \\\n" for line in ("#define BLINK_PRODUCTS", *lines)) + "\n"
