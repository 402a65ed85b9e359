"""Primed products (primed_product.h): those in CUDA C++ that are for the fewest rows.

Their code, primed_product_gpu.cu, is compiled once for all the ways of cutting that a model uses.
"""

from __future__ import annotations

from ctypes import c_uint32, c_uint64

import torch
from torch import Tensor

from blink_persistent.engines.cuda.kernels.cuts.choices import Cuts
from blink_persistent.engines.cuda.kernels.cuts.primed_cut import (
    PrimedCut,
    PrimedKernel,
    primed_code,
)
from blink_persistent.gpu.chained_launch import ChainedKernel
from blink_persistent.gpu.driver import Gpu


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
