"""The norm between products in CUDA C++, small enough to wait beside one (primed_norm.h)."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from blink_persistent.engines.cuda.kernels.cuts.choices import ROW_TILES, row_tile
from blink_persistent.engines.cuda.kernels.cuts.primed_norm_cut import NormCall, norm_code, norm_cut
from blink_persistent.gpu.chained_launch import ChainedKernel
from blink_persistent.gpu.driver import Gpu


class PrimedNorm:
    """For rows of one size; the `gpu` owns its code."""

    def __init__(self, gpu: Gpu, size: int, tiles: Collection[int] = ROW_TILES) -> None:
        """`size`: a multiple of 4; `tiles`: the numbers of `ROW_TILES` that it is for.

        Raises DeviceCodeError or CudaError.
        """
        self._tiles = tiles
        warps, each = norm_cut(size)
        program = gpu.load("primed_norm_gpu.cu", (NormCall,), prologue=norm_code(warps, each))
        function = program.function("blink_norm")
        self._kernel = ChainedKernel(gpu, function, threads=32 * warps, shared_bytes=4 * warps)

    def takes(self, delta: Tensor) -> bool:
        """Only the parts that products of the engine's own leave, at least one."""
        own = delta.dtype == torch.float32 and len(delta) > 0
        return own and row_tile(delta.shape[1]) in self._tiles

    def __call__(
        self,
        delta: Tensor,
        gain: Tensor,
        epsilon: float,
        residual: Tensor,
        out: Tensor,
        *,
        chained: bool,
    ) -> None:
        """As `Kernels.add_norm`, on PyTorch's current stream."""
        parts, rows, size = delta.shape
        arrays = {"delta": delta, "gain": gain, "residual": residual, "out": out}
        call = NormCall(
            **{name: tensor.data_ptr() for name, tensor in arrays.items()},
            epsilon=epsilon,
            parts=parts,
            rows=rows,
            size=size,
        )
        stream = torch.cuda.current_stream().cuda_stream
        self._kernel.launch(rows, stream, call, chained=chained)


def primed_norm_for(gpu: Gpu, size: int, tiles: Collection[int] = ROW_TILES) -> PrimedNorm | None:
    """The norm of rows of that size, if there are such `tiles` and it can load them as it does."""
    return PrimedNorm(gpu, size, tiles) if tiles and size % 4 == 0 else None
