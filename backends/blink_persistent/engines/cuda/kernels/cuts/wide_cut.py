"""How a product on the tensor cores is cut, and its kernel's name and text (wide_product.h)."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass

WINDOW = 64  # inner elements whose rows of a tile lie together in shared memory
BOX_ROWS = 256  # that a bulk copy takes at most
BARRIER_BYTES = 1024
FIRST_BYTES = 42 << 10
"""Of weights, that a block has on their way at a time until all of its stages are asked for once:
measured at 16 to 64 rows of Llama-3-8B, where twice as much was no better than all at once."""
ALIGNMENT = 1024
"""Of shared memory: as much of it as is left out may come before what a kernel uses."""


@dataclass(frozen=True, slots=True)
class WideCut:
    """`blocks` times `splits` blocks, at most one a multiprocessor.

    A block computes tiles of `features`, in steps of `windows` * 64 inner elements, of which
    `stages` are in shared memory or on their way, by `groups` warpgroups. `gated`: for gate and up
    with SwiGLU. Without `blocks` there is one for each tile.
    """

    features: int
    splits: int = 1
    windows: int = 2
    stages: int = 4
    groups: int = 2
    gated: bool = False
    blocks: int | None = None

    def fits(self, size: int, depth: int) -> bool:
        """Can a product with [size, depth] weights be cut so? `size`: of the output."""
        return (
            depth % (self.splits * self.windows * WINDOW) == 0
            and self.box_rows % 8 == 0
            and self.features % self.box_rows == 0
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
        """Of a block: those that multiply, and two warps that copy."""
        return 128 * self.groups + 64

    @property
    def first(self) -> int:
        """Stages of weights that are on their way at a time at first."""
        return -(-FIRST_BYTES // (2 * WINDOW * self.windows * self.tile_rows))

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
        ("first", ctypes.c_uint32),
    ]


def wide_call(cut: WideCut, out: int, sizes: tuple[int, int, int]) -> WideProductCall:
    """For `sizes` rows, output features, inner elements, to the address `out`."""
    rows, size, depth = sizes
    return WideProductCall(
        out=out,
        rows=rows,
        size=size,
        share=depth // cut.splits,
        blocks=cut.blocks_for(size),
        first=cut.first,
    )


@dataclass(frozen=True, slots=True)
class WideKernel:
    """What of a product is known when its kernel is compiled."""

    features: int
    row_tile: int
    windows: int
    stages: int
    groups: int
    gated: bool

    @classmethod
    def of(cls, cut: WideCut, row_tile: int) -> WideKernel:
        """The kernel that computes up to `row_tile` rows, a number of `ROW_TILES`."""
        sizes = cut.windows, cut.stages, cut.groups
        return cls(cut.features, row_tile, *sizes, gated=cut.gated)

    @property
    def name(self) -> str:
        """Of its function."""
        sizes = self.features, self.row_tile, self.windows, self.stages, self.groups
        return "_".join(("blink_wide_gated" if self.gated else "blink_wide", *map(str, sizes)))

    @property
    def definition(self) -> str:
        """Its line of BLINK_PRODUCTS."""
        rows = self.features * (2 if self.gated else 1)
        sizes = rows, self.row_tile, self.windows, self.stages, self.groups
        written = "true, uint16_t" if self.gated else "false, float"
        return f"BLINK_PRODUCT({self.name}, {', '.join(map(str, sizes))}, {written})"


def wide_code(kernels: Iterable[WideKernel]) -> str:
    """The text that stands before wide_product_gpu.cu, for these kernels."""
    lines = sorted({kernel.definition for kernel in kernels})
    return "".join(f"{line} \\\n" for line in ("#define BLINK_PRODUCTS", *lines)) + "\n"
