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

    F32, F16 and BF16 give float32 of the tensor's shape, the others a `QuantizedTensor` whose
    codes, scales and minima are exactly the file's (K-quants' after the exact product of a
    super-block's scale with its blocks'). Raises KeyError for other types (see `is_supported`).
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


def _bfloats(data: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """bfloat16, as bytes, is the upper half of float32."""
    halves = np.ascontiguousarray(data).view(np.uint16)
    return (halves.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _q4_0(data: npt.NDArray[Any]) -> QuantizedTensor:
    """18 bytes a block: scale as float16, then codes as in Q4_1; code 8 is zero."""
    rows = data.shape[0]
    blocks = data.reshape(rows, -1, 18)
    scale = _halves(blocks[:, :, 0:2])
    codes = _nibbles(blocks[:, :, 2:]).reshape(rows, -1)
    return QuantizedTensor(4, _BLOCK, codes, scale, np.float32(-8) * scale)


def _q4_1(data: npt.NDArray[Any]) -> QuantizedTensor:
    """20 bytes a block: scale and minimum as float16, then 16 bytes of two codes each.

    The low four bits of the bytes are elements 0..15 of the block, the high four 16..31.
    """
    rows = data.shape[0]
    blocks = data.reshape(rows, -1, 20)
    return QuantizedTensor(
        bits=4,
        block_size=_BLOCK,
        codes=_nibbles(blocks[:, :, 4:]).reshape(rows, -1),
        scale=_halves(blocks[:, :, 0:2]),
        minimum=_halves(blocks[:, :, 2:4]),
    )


def _q5_0(data: npt.NDArray[Any]) -> QuantizedTensor:
    """22 bytes a block: scale as float16, then codes as in Q5_1; code 16 is zero."""
    rows = data.shape[0]
    blocks = data.reshape(rows, -1, 22)
    scale = _halves(blocks[:, :, 0:2])
    codes = _nibbles(blocks[:, :, 6:]) | _fifth_bits(blocks[:, :, 2:6])
    return QuantizedTensor(5, _BLOCK, codes.reshape(rows, -1), scale, np.float32(-16) * scale)


def _q5_1(data: npt.NDArray[Any]) -> QuantizedTensor:
    """24 bytes a block: scale and minimum as float16, 4 bytes of fifth bits, codes as in Q4_1."""
    rows = data.shape[0]
    blocks = data.reshape(rows, -1, 24)
    codes = _nibbles(blocks[:, :, 8:]) | _fifth_bits(blocks[:, :, 4:8])
    scale, minimum = _halves(blocks[:, :, 0:2]), _halves(blocks[:, :, 2:4])
    return QuantizedTensor(5, _BLOCK, codes.reshape(rows, -1), scale, minimum)


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


def _q4_k(data: npt.NDArray[Any]) -> QuantizedTensor:
    """144 bytes a super-block of 8 blocks of 32: w = d * scale * code - dmin * minimum.

    d and dmin as float16; 12 bytes of 6-bit scales and minima; 128 bytes of codes, of which 32
    hold two blocks: the low four bits one, the high four the next.
    """
    rows = data.shape[0]
    blocks = data.reshape(rows, -1, 144)
    codes = _nibbles(blocks[:, :, 16:].reshape(rows, -1, 32)).reshape(rows, -1)
    return QuantizedTensor(4, _BLOCK, codes, *_k_scales(blocks))


def _q5_k(data: npt.NDArray[Any]) -> QuantizedTensor:
    """176 bytes a super-block: as Q4_K, with 32 bytes of fifth bits before the codes.

    Bit i of those bytes belongs to block i.
    """
    rows = data.shape[0]
    blocks = data.reshape(rows, -1, 176)
    low = _nibbles(blocks[:, :, 48:].reshape(rows, -1, 4, 32)).reshape(rows, -1, 8, 32)
    high = blocks[:, :, 16:48].reshape(rows, -1, 1, 32) >> _shifts(*range(8)) & 1
    codes = (low | high << 4).astype(np.uint8, copy=False).reshape(rows, -1)
    return QuantizedTensor(5, _BLOCK, codes, *_k_scales(blocks))


def _k_scales(
    blocks: npt.NDArray[Any],
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Scales and minima of the blocks of super-blocks that begin as Q4_K's do."""
    rows = blocks.shape[0]
    low_scales, low_minima, rest = (blocks[:, :, at : at + 4] for at in (4, 8, 12))
    # The first four have their six bits together; of the others two are kept with those.
    scales = np.concatenate((low_scales & 63, rest & 15 | (low_scales >> 6) << 4), axis=2)
    minima = np.concatenate((low_minima & 63, rest >> 4 | (low_minima >> 6) << 4), axis=2)
    scale, step = _halves(blocks[:, :, 0:2])[:, :, None], _halves(blocks[:, :, 2:4])[:, :, None]
    return (scale * scales).reshape(rows, -1), (-step * minima).reshape(rows, -1)


def _q6_k(data: npt.NDArray[Any]) -> QuantizedTensor:
    """210 bytes a super-block of 16 blocks of 16: w = d * scale * (code - 32).

    128 bytes of the codes' low four bits, 64 of their high two, 16 signed scales, d as float16.
    Each half of the super-block, 128 codes, has its own half of either.
    """
    rows = data.shape[0]
    blocks = data.reshape(rows, -1, 210)
    low = blocks[:, :, :128].reshape(rows, -1, 2, 1, 64) >> _shifts(0, 4) & 15
    high = blocks[:, :, 128:192].reshape(rows, -1, 2, 1, 32) >> _shifts(0, 2, 4, 6) & 3
    codes = low.reshape(rows, -1, 8, 32) | high.reshape(rows, -1, 8, 32) << 4
    scales = np.ascontiguousarray(blocks[:, :, 192:208]).view(np.int8)
    scale = (_halves(blocks[:, :, 208:210])[:, :, None] * scales).reshape(rows, -1)
    whole = codes.astype(np.uint8, copy=False).reshape(rows, -1)
    return QuantizedTensor(6, 16, whole, scale, np.float32(-32) * scale)


def _nibbles(packed: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Bytes [..., n] as codes [..., 2 n]: all low halves, then all high ones."""
    return np.concatenate((packed & 0x0F, packed >> 4), axis=-1)


def _fifth_bits(packed: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """4 bytes [..., 4], a bit a code from the lowest on, as 0 or 16 for each of 32 codes."""
    return np.unpackbits(packed, axis=-1, bitorder="little") << np.uint8(4)


def _shifts(*bits: int) -> npt.NDArray[np.uint8]:
    return np.array(bits, np.uint8)[:, None]


def _halves(data: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """float16 stored as two bytes [rows, blocks, 2], as float32 [rows, blocks]."""
    return np.ascontiguousarray(data).view(np.float16)[:, :, 0].astype(np.float32)


_DECODERS: dict[str, Callable[[npt.NDArray[Any]], Tensor]] = {
    "F32": _floats,
    "F16": _floats,
    "BF16": _bfloats,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
