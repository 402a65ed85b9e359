"""Matrix products of a step: streamed where that was measured to be faster, else the library's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from blink_persistent.engines.cuda.kernels.ahead.products import RunAhead
from blink_persistent.engines.cuda.kernels.cuts.choices import (
    DOT_LEAST,
    ROW_TILES,
    AheadCut,
    AnyCut,
    Cuts,
    PaddedRows,
    Shape,
    row_tile,
)
from blink_persistent.engines.cuda.kernels.in_triton import stream, swiglu
from blink_persistent.engines.cuda.kernels.reference import library_logits

SWIGLU_TILE = 1024


@dataclass(frozen=True, slots=True)
class Chain:
    """How the kernels of a step of so many tokens are launched.

    Chained only where its products are streamed: the library's take no part, and a chain that
    they break made every step that was measured slower.
    """

    tiles: frozenset[int]  # the numbers of `ROW_TILES` whose steps are chained

    def __call__(self, tokens: int) -> dict[str, bool]:
        chained = row_tile(tokens) in self.tiles
        return {"CHAINED": chained, "launch_pdl": chained}


class Products:
    """Fulfils the products of `Kernels` for the weights' shapes that it is made for."""

    def __init__(
        self,
        shapes: Iterable[Shape],
        cuts: Cuts,
        *,
        chained: bool,
        device: object,
        ahead: RunAhead | None = None,
        padded: PaddedRows | None = None,
    ) -> None:
        """`shapes`: of the weights that `product` is given, [out_features, in_features].

        `ahead` runs the products whose cut is an `AheadCut`; `padded` are the library's, but for
        the vocabulary's.
        """
        self._cuts, self._ahead, self._padded = cuts, ahead, padded or {}
        shapes = list(shapes)
        # A method of this object would make it keep itself: `FusedKernels` hands the chain on.
        self.chain = Chain(
            frozenset(
                tile
                for tile in ROW_TILES
                if chained and all((shape, tile) in cuts for shape in shapes)
            )
        )
        room = max(
            (
                cut.splits * tile * shape[0]
                for shape in shapes
                for tile in ROW_TILES
                if (cut := cuts.get((shape, tile))) is not None
            ),
            default=0,
        )
        self._parts = torch.zeros(room, dtype=torch.float32, device=device)

    def product(self, x: Tensor, weight: Tensor, out: Tensor, t: int) -> Tensor:
        size = len(weight)
        cut = self._cut(t, weight)
        if cut is None:
            return self._library_product(x, weight, out, t)[None]
        parts = self._parts[: cut.splits * t * size].view(cut.splits, t, size)
        self._stream(x[:t], weight, parts, size, cut, gated=False)
        return parts

    def gated_product(self, x: Tensor, weight: Tensor, room: Tensor, out: Tensor, t: int) -> None:
        cut = self._cut(t, weight, gated=True)
        if cut is None:
            self.swiglu(self._library_product(x, weight, room, t), out[:t])
        else:
            self._stream(x[:t], weight, out[:t], out.shape[1], cut, gated=True)

    def vocabulary_product(self, x: Tensor, weight: Tensor, out: Tensor) -> None:
        cut = self._cut(len(x), weight)
        if cut is None:
            library_logits(x, weight, out)
        else:
            self._stream(x, weight, out, len(weight), cut, gated=False)

    def swiglu(self, gate_up: Tensor, out: Tensor) -> None:
        """out = silu(gate) * up; gate is the first half of each row of `gate_up`."""
        tokens, size = out.shape
        tile = min(SWIGLU_TILE, triton.next_power_of_2(size))
        swiglu.swiglu[(tokens, triton.cdiv(size, tile))](
            gate_up, out, SIZE=size, TILE=tile, **self.chain(tokens)
        )  # fmt: skip

    def _library_product(self, x: Tensor, weight: Tensor, out: Tensor, t: int) -> Tensor:
        """The first t rows, computed with some behind them where that is faster and they exist."""
        rows = self._padded.get((*weight.shape,), {}).get(t, t)
        if rows > min(len(x), len(out)):
            rows = t
        return torch.mm(x[:rows], weight.t(), out=out[:rows])[:t]

    def _cut(self, rows: int, weight: Tensor, *, gated: bool = False) -> AnyCut | None:
        tile = row_tile(rows)
        cut = None if tile is None else self._cuts.get(((*weight.shape,), tile))
        # Gate with up, and another weight of the model, may have the same shape.
        return None if isinstance(cut, AheadCut) and cut.gated != gated else cut

    def _stream(
        self,
        x: Tensor,
        weight: Tensor,
        out: Tensor,
        size: int,
        cut: AnyCut,
        *,
        gated: bool,
    ) -> None:
        """`out` is [splits, rows, size] or, of one split, [rows, size]."""
        rows, depth = x.shape
        tile = row_tile(rows)
        assert tile is not None
        if isinstance(cut, AheadCut):
            assert self._ahead is not None
            self._ahead(x, weight, out, cut, tile, chained=self.chain(rows)["CHAINED"])
            return
        stream.stream_product[(size // cut.features, cut.splits)](
            x, weight, out, rows, size, depth, depth // cut.splits, cut.features,
            ROW_TILE=max(tile, DOT_LEAST), TILE=triton.next_power_of_2(cut.features),
            STEP=cut.step, GATED=gated,
            num_warps=cut.warps, num_stages=cut.stages, **self.chain(rows),
        )  # fmt: skip
