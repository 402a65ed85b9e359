"""By what a kernel's bulk copies find boxes of a tensor (CUtensorMap), as its parameters."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from blink_persistent.engines.cuda.kernels.cuts.wide_cut import WINDOW
from blink_persistent.gpu.driver import Gpu

MAP_WORDS = 16  # of 8 bytes


def tensor_map(gpu: Gpu, matrix: Tensor, box_rows: int) -> ctypes.Array[ctypes.c_uint64]:
    """For boxes of `box_rows` rows and 64 columns of a bfloat16 [rows, columns].

    Raises CudaError.
    """
    rows, columns = matrix.shape
    pitch = matrix.element_size() * columns
    return _encoded(gpu, matrix, (columns, rows), (pitch,), (WINDOW, box_rows))


def windows_map(
    gpu: Gpu, matrix: Tensor, box_rows: int, windows: int, parts: int = 1
) -> ctypes.Array[ctypes.c_uint64]:
    """For boxes of `windows` times 64 columns, and `box_rows` rows of each part, of a bfloat16
    [parts * rows, columns]: as [windows, parts, rows, 64]. Behind the last column are zeros.

    Raises CudaError.
    """
    rows, columns = len(matrix) // parts, matrix.shape[1]
    pitch = matrix.element_size() * matrix.stride(0)
    sizes = WINDOW, rows, parts, columns // WINDOW
    strides = pitch, pitch * rows, matrix.element_size() * WINDOW
    return _encoded(gpu, matrix, sizes, strides, (WINDOW, box_rows, parts, windows))


def _encoded(
    gpu: Gpu, tensor: Tensor, sizes: Sequence[int], strides: Sequence[int], box: Sequence[int]
) -> ctypes.Array[ctypes.c_uint64]:
    """`strides`, in bytes, are those of all dimensions but the first, which lies together."""
    driver: Any = gpu.driver
    encoded = gpu.call(
        "cuTensorMapEncodeTiled",
        driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        len(sizes),
        tensor.data_ptr(),
        [driver.cuuint64_t(size) for size in sizes],
        [driver.cuuint64_t(stride) for stride in strides],
        [driver.cuuint32_t(side) for side in box],
        [driver.cuuint32_t(1)] * len(sizes),
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    parameter = (ctypes.c_uint64 * MAP_WORDS)()
    ctypes.memmove(parameter, int(encoded.getPtr()), ctypes.sizeof(parameter))
    return parameter
