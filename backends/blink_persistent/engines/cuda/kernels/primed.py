"""Products in CUDA C++ whose first weights are on their way before the kernel ahead has ended.

Their code, primed_product_gpu.cu and wide_product_gpu.cu, is compiled once each for all the ways of
cutting that a model uses.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_uint32, c_uint64
from typing import Protocol

import torch
from torch import Tensor

from blink_persistent.engines.cuda.kernels.choices import AheadCut, Cuts
from blink_persistent.engines.cuda.kernels.primed_cut import PrimedCut, PrimedKernel, primed_code
from blink_persistent.engines.cuda.kernels.wide import WideProducts
from blink_persistent.engines.cuda.kernels.wide_cut import WideCut
from blink_persistent.gpu.chained_launch import ChainedKernel
from blink_persistent.gpu.driver import Gpu


class RunPrimed(Protocol):
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
    """Fulfils `RunPrimed` on a GPU, for the cuts that it is made for; the `gpu` owns its code."""

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


class PrimedProducts:
    """For the primed cuts that it is made for; the `gpu` owns its code."""

    def __init__(self, gpu: Gpu, cuts: Cuts) -> None:
        """Raises DeviceCodeError or CudaError."""
        kernels = {
            PrimedKernel.of(cut, row_tile): cut.shared_bytes(row_tile)
            for (_, row_tile), cut in cuts.items()
            if isinstance(cut, PrimedCut)
        }
        program = gpu.load("primed_product_gpu.cu", (), prologue=primed_code(kernels))
        self._kernels = {
            kernel: ChainedKernel(
                gpu,
                program.function(kernel.name),
                threads=32 * kernel.warps,
                shared_bytes=shared_bytes,
            )
            for kernel, shared_bytes in kernels.items()
        }

    def __call__(
        self,
        x: Tensor,
        weight: Tensor,
        out: Tensor,
        cut: PrimedCut,
        row_tile: int,
        *,
        chained: bool,
    ) -> None:
        """x, bfloat16 [rows, depth], times the weight, on PyTorch's current stream.

        `weight` is [size, depth], `out` float32 [splits, rows, size]. Of a gated cut: [2 * size,
        depth], the gate's rows first, and silu(gate) * up as bfloat16 [rows, size].
        """
        rows, depth = x.shape
        size = len(weight) // 2 if cut.gated else len(weight)
        kernel = self._kernels[PrimedKernel.of(cut, row_tile)]
        kernel.launch(
            cut.blocks * cut.splits,
            torch.cuda.current_stream().cuda_stream,
            *(c_uint64(tensor.data_ptr()) for tensor in (x, weight, out)),
            *map(c_uint32, (rows, size, depth, depth // cut.splits, cut.blocks)),
            chained=chained,
        )


MakePrimed = Callable[[Cuts], RunPrimed | None]
"""What runs the products that read ahead among these, if there are any."""


def no_primed(cuts: Cuts) -> None:
    """Fulfils `MakePrimed` where there is no GPU. Raises ValueError for an `AheadCut`."""
    if any(isinstance(cut, AheadCut) for cut in cuts.values()):
        raise ValueError("primed and wide cuts are for a GPU")


def primed_on(gpu: Gpu) -> MakePrimed:
    """Kernels that `gpu` owns."""

    def make(cuts: Cuts) -> RunPrimed | None:
        ahead = any(isinstance(cut, AheadCut) for cut in cuts.values())
        return AheadProducts(gpu, cuts) if ahead else None

    return make
