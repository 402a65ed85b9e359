"""What every importer produces and every backend's `build` reads: a checkpoint in canonical form.

Tensor names and layouts are Hugging Face's Llama ones ("model.layers.0.self_attn.q_proj.weight",
shape [out_features, in_features]); rotary embedding is in the half-split ("rotate_half") layout,
whatever the source file used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Shape of a decoder-only transformer of the Llama family."""

    family: str  # "llama"
    layers: int
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary_size: int
    context_length: int
    rope_theta: float
    rms_norm_eps: float
    tied_embeddings: bool


@dataclass(frozen=True, slots=True)
class QuantizedTensor:
    """A matrix [rows, columns] in blocks of `block_size` along columns: w = scale * code + minimum.

    codes: uint8 [rows, columns], each below 2**bits. scale, minimum: float32
    [rows, columns / block_size], exactly the file's values.
    """

    bits: int
    block_size: int
    codes: npt.NDArray[np.uint8]
    scale: npt.NDArray[np.float32]
    minimum: npt.NDArray[np.float32]

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.codes.shape
        return rows, columns

    def dequantize(self) -> npt.NDArray[np.float32]:
        """The matrix as float32 [rows, columns]."""
        rows, columns = self.codes.shape
        blocks = self.codes.reshape(rows, columns // self.block_size, self.block_size)
        values = blocks * self.scale[:, :, None] + self.minimum[:, :, None]
        return values.astype(np.float32, copy=False).reshape(rows, columns)


Tensor = npt.NDArray[np.float32] | QuantizedTensor


class Checkpoint(Protocol):
    """A model read from somebody's file, opened lazily: a tensor is read when asked for."""

    architecture: Architecture
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    tokenizer_json: str  # the `tokenizers` library's serialized form
    chat_template: str | None  # jinja2 source
    source: Mapping[str, Any]  # provenance for config.json: file name, format, sha256

    def tensor_names(self) -> list[str]: ...

    def tensor(self, name: str) -> Tensor:
        """The tensor of a canonical name. Raises KeyError."""
        ...
