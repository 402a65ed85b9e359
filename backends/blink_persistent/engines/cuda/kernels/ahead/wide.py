"""Products on Hopper's tensor cores, whose first weights are on their way before the kernel ahead
has ended (wide_product.h): for more rows than keep pace with the memory without them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from blink_persistent.engines.cuda.kernels.cuts.wide_cut import (
    ALIGNMENT,
    WINDOW,
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


def tensor_map(gpu: Gpu, matrix: Tensor, box_rows: int) -> ctypes.Array[ctypes.c_uint64]:
    """A kernel's parameter by which it copies boxes of `box_rows` rows and 64 columns.

    `matrix` is bfloat16 [rows, columns]. Raises CudaError.
    """
    driver: Any = gpu.driver
    rows, columns = matrix.shape
    encoded = gpu.call(
        "cuTensorMapEncodeTiled",
        driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        2,
        matrix.data_ptr(),
        [driver.cuuint64_t(columns), driver.cuuint64_t(rows)],
        [driver.cuuint64_t(matrix.element_size() * columns)],
        [driver.cuuint32_t(WINDOW), driver.cuuint32_t(box_rows)],
        [driver.cuuint32_t(1), driver.cuuint32_t(1)],
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    parameter = (ctypes.c_uint64 * 16)()
    ctypes.memmove(parameter, int(encoded.getPtr()), ctypes.sizeof(parameter))
    return parameter
