"""How a product in CUDA C++ is cut, and its kernel's name and text (primed_product.h)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

WINDOW = 32  # inner elements that a warp multiplies at once


@dataclass(frozen=True, slots=True)
class PrimedCut:
    """`blocks` times `splits` blocks, at most one a multiprocessor.

    A block computes its share of the features, `warps` * `tiles` tiles of 16 (8 where gated) at a
    time, in steps of `windows` * 32 inner elements, of which `stages` are on their way. `gated`:
    for gate and up with SwiGLU.
    """

    blocks: int
    splits: int = 1
    warps: int = 8
    tiles: int = 1
    windows: int = 4
    stages: int = 6
    gated: bool = False

    def fits(self, size: int, depth: int) -> bool:
        """Can a product with [size, depth] weights be cut so? `size`: of the output."""
        return size >= self.tile_features and depth % (self.splits * self.windows * WINDOW) == 0

    @property
    def tile_features(self) -> int:
        """Output features of a tile of 16 weight rows."""
        return 8 if self.gated else 16

    def shared_bytes(self, row_tile: int) -> int:
        """Shared memory of a block, for so many rows of `ROW_TILES`."""
        return self.stages * stage_bytes(self.warps * self.tiles, row_tile, self.windows)


def stage_bytes(tiles: int, row_tile: int, windows: int) -> int:
    """Weights and activations of one step."""
    return 2 * (16 * tiles + row_tile) * windows * WINDOW


@dataclass(frozen=True, slots=True)
class PrimedKernel:
    """What of a product is known when its kernel is compiled."""

    warps: int
    tiles: int
    row_tile: int
    windows: int
    stages: int
    gated: bool

    @classmethod
    def of(cls, cut: PrimedCut, row_tile: int) -> PrimedKernel:
        """The kernel that computes up to `row_tile` rows, a number of `ROW_TILES`."""
        return cls(cut.warps, cut.tiles, row_tile, cut.windows, cut.stages, cut.gated)

    @property
    def name(self) -> str:
        """Of its function."""
        sizes = self.warps, self.tiles, self.row_tile, self.windows, self.stages
        return "_".join(("blink_gated" if self.gated else "blink_product", *map(str, sizes)))

    @property
    def definition(self) -> str:
        """Its line of BLINK_PRODUCTS."""
        sizes = self.warps, self.tiles, self.row_tile // 8, self.windows, self.stages
        written = "true, uint16_t" if self.gated else "false, float"
        return f"BLINK_PRODUCT({self.name}, {', '.join(map(str, sizes))}, {written})"


def primed_code(kernels: Iterable[PrimedKernel]) -> str:
    """The text that stands before primed_product_gpu.cu, for these kernels."""
    lines = sorted({kernel.definition for kernel in kernels})
    return "".join(f"{line} \\\n" for line in ("#define BLINK_PRODUCTS", *lines)) + "\n"
