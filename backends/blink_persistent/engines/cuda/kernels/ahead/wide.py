"""Products on Hopper's tensor cores, whose first weights are on their way before the kernel ahead
has ended (wide_product.h): for more rows than keep pace with the memory without them.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from blink_persistent.engines.cuda.kernels.ahead.tensor_maps import tensor_map
from blink_persistent.engines.cuda.kernels.cuts.wide_cut import (
    ALIGNMENT,
    WideCut,
    WideKernel,
    WideProductCall,
    wide_call,
    wide_code,
)
from blink_persistent.gpu.chained_launch import ChainedKernel
from blink_persistent.gpu.driver import Gpu


class WideProducts:
    """For the cuts that it is made for, each with a number of `ROW_TILES`.

    The `gpu`, of compute capability 9.0, owns the code.
    """

    def __init__(self, gpu: Gpu, cuts: Iterable[tuple[WideCut, int]]) -> None:
        """Raises DeviceCodeError or CudaError."""
        self._gpu = gpu
        kernels = {WideKernel.of(cut, tile): (cut, tile) for cut, tile in cuts}
        program = gpu.load(
            "wide_product_gpu.cu",
            (WideProductCall,),
            prologue=wide_code(kernels),
            of_this_architecture=True,
        )
        self._kernels = {
            kernel: ChainedKernel(
                gpu,
                program.function(kernel.name),
                threads=cut.threads,
                shared_bytes=cut.shared_bytes(tile) + ALIGNMENT,
            )
            for kernel, (cut, tile) in kernels.items()
        }

    def __call__(
        self,
        x: Tensor,
        weight: Tensor,
        out: Tensor,
        cut: WideCut,
        row_tile: int,
        *,
        chained: bool,
    ) -> None:
        """x, bfloat16 [rows, depth], times the weight, on PyTorch's current stream.

        `weight` is [size, depth], `out` float32 [splits, rows, size]. Of a gated cut: [2 * size,
        depth], the gate's rows first, and silu(gate) * up as bfloat16 [rows, size]. `depth` is a
        multiple of 8, and x and the weight begin at multiples of 16 bytes. Raises CudaError.
        """
        rows, depth = x.shape
        size = len(weight) // 2 if cut.gated else len(weight)
        self._kernels[WideKernel.of(cut, row_tile)].launch(
            cut.blocks_for(size) * cut.splits,
            torch.cuda.current_stream().cuda_stream,
            tensor_map(self._gpu, weight, cut.box_rows),
            tensor_map(self._gpu, x, row_tile),
            wide_call(cut, out.data_ptr(), (rows, size, depth)),
            chained=chained,
        )
