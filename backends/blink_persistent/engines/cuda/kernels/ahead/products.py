"""Products in CUDA C++ whose first weights are on their way before the kernel ahead has ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from blink_persistent.engines.cuda.kernels.ahead.primed import PrimedProducts
from blink_persistent.engines.cuda.kernels.ahead.wide import WideProducts
from blink_persistent.engines.cuda.kernels.cuts.choices import AheadCut, Cuts
from blink_persistent.engines.cuda.kernels.cuts.primed_cut import PrimedCut
from blink_persistent.engines.cuda.kernels.cuts.wide_cut import WideCut
from blink_persistent.gpu.driver import Gpu


class RunAhead(Protocol):
    """Launches a product."""

    def __call__(
        self,
        x: Tensor,
        weight: Tensor,
        out: Tensor,
        cut: AheadCut,
        row_tile: int,
        *,
        chained: bool,
    ) -> None:
        """As `PrimedProducts.__call__`."""
        ...


class AheadProducts:
    """Fulfils `RunAhead` on a GPU, for the cuts that it is made for; the `gpu` owns its code."""

    def __init__(self, gpu: Gpu, cuts: Cuts) -> None:
        """Raises DeviceCodeError or CudaError."""
        primed = {key: cut for key, cut in cuts.items() if isinstance(cut, PrimedCut)}
        wide = [(cut, tile) for (_, tile), cut in cuts.items() if isinstance(cut, WideCut)]
        self._primed = PrimedProducts(gpu, primed) if primed else None
        self._wide = WideProducts(gpu, wide) if wide else None

    def __call__(
        self,
        x: Tensor,
        weight: Tensor,
        out: Tensor,
        cut: AheadCut,
        row_tile: int,
        *,
        chained: bool,
    ) -> None:
        """As `PrimedProducts.__call__` or `WideProducts.__call__`."""
        if isinstance(cut, WideCut):
            assert self._wide is not None
            self._wide(x, weight, out, cut, row_tile, chained=chained)
        else:
            assert self._primed is not None
            self._primed(x, weight, out, cut, row_tile, chained=chained)


MakeAhead = Callable[[Cuts], RunAhead | None]
"""What runs the products that read ahead among these, if there are any."""


def no_ahead(cuts: Cuts) -> None:
    """Fulfils `MakeAhead` where there is no GPU. Raises ValueError for an `AheadCut`."""
    if any(isinstance(cut, AheadCut) for cut in cuts.values()):
        raise ValueError("primed and wide cuts are for a GPU")


def ahead_on(gpu: Gpu) -> MakeAhead:
    """Kernels that `gpu` owns."""

    def make(cuts: Cuts) -> RunAhead | None:
        ahead = any(isinstance(cut, AheadCut) for cut in cuts.values())
        return AheadProducts(gpu, cuts) if ahead else None

    return make
