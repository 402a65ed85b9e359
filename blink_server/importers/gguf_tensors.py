"""GGUF's tensor encodings, decoded without loss.

Block layouts: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from blink_server.importers.checkpoint import QuantizedTensor, Tensor

_BLOCK = 32


def decode(tensor: gguf.ReaderTensor) -> Tensor:
    """The tensor of the file in canonical form, rows in the file's order.

    F32 and F16 give float32 of the tensor's shape; Q4_1 and Q8_0 a `QuantizedTensor` whose
    codes, scales and minima are exactly the file's. Raises KeyError for other types (see
    `is_supported`).
    """
    return _DECODERS[tensor.tensor_type.name](tensor.data)


def is_supported(tensor: gguf.ReaderTensor) -> bool:
    """Whether the tensor's type can be decoded; one row of numbers is never quantized."""
    kind = tensor.tensor_type.name
    return kind in _DECODERS and (len(tensor.shape) == 2 or not kind.startswith("Q"))


def supported_types() -> str:
    """The types that can be decoded, for a message."""
    return ", ".join(_DECODERS)


def all_finite(tensor: Tensor) -> bool:
    """Whether no value of the tensor is infinite or NaN."""
    if isinstance(tensor, QuantizedTensor):
        return bool(np.isfinite(tensor.scale).all() and np.isfinite(tensor.minimum).all())
    return bool(np.isfinite(tensor).all())


def _floats(data: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    return np.array(data, dtype=np.float32)


def _q4_1(data: npt.NDArray[Any]) -> QuantizedTensor:
    """20 bytes a block: scale and minimum as float16, then 16 bytes of two codes each.

    The low four bits of the bytes are elements 0..15 of the block, the high four 16..31.
    """
    rows = data.shape[0]
    blocks = data.reshape(rows, -1, 20)
    packed = blocks[:, :, 4:]
    codes = np.concatenate((packed & 0x0F, packed >> 4), axis=2)
    return QuantizedTensor(
        bits=4,
        block_size=_BLOCK,
        codes=codes.reshape(rows, -1),
        scale=_halves(blocks[:, :, 0:2]),
        minimum=_halves(blocks[:, :, 2:4]),
    )


def _q8_0(data: npt.NDArray[Any]) -> QuantizedTensor:
    """34 bytes a block: scale as float16, then 32 signed bytes."""
    rows = data.shape[0]
    blocks = data.reshape(rows, -1, 34)
    scale = _halves(blocks[:, :, 0:2])
    return QuantizedTensor(
        bits=8,
        block_size=_BLOCK,
        codes=(blocks[:, :, 2:] ^ np.uint8(0x80)).reshape(rows, -1),  # int8 + 128 as uint8
        scale=scale,
        minimum=np.float32(-128) * scale,
    )


def _halves(data: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """float16 stored as two bytes [rows, blocks, 2], as float32 [rows, blocks]."""
    return np.ascontiguousarray(data).view(np.float16)[:, :, 0].astype(np.float32)


_DECODERS: dict[str, Callable[[npt.NDArray[Any]], Tensor]] = {
    "F32": _floats,
    "F16": _floats,
    "Q4_1": _q4_1,
    "Q8_0": _q8_0,
}
