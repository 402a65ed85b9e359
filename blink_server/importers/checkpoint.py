"""What every importer produces and every backend's `build` reads: a checkpoint in canonical form.

Tensor names and layouts are Hugging Face's Llama ones ("model.layers.0.self_attn.q_proj.weight",
shape [out_features, in_features]); rotary embedding is in the half-split ("rotate_half") layout,
whatever the source file used. A backend holds a matrix as it comes: float32 as float32,
quantized blocks as such blocks; what is to be smaller is quantized by the importer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Shape of a decoder-only transformer: Llama, Mistral, Qwen 2 and 3, Qwen 3 MoE, Phi 3 and 4.

    attention_bias: the projections to queries, keys and values add ("...q_proj.bias", float32
    [rows]); the other projections do not. qk_norm: each head's query and key pass through an
    RMS norm of their own before rotation ("...q_norm.weight", "...k_norm.weight", float32
    [head_dim]). rotary_dim: how many elements of a head turn, 0 for all; the pairs that do are the
    first ones of the half-split layout. rope_divisors: what their frequencies are divided by, one
    number a pair, or none: every scaling whose tables depend on the position alone comes to that.
    rope_magnitude: what their cos and sin are multiplied by.

    With experts the family is "qwen3_moe": each layer has so many MLPs of `intermediate_size`
    ("mlp.experts.0.gate_proj.weight" ...), and a router ("mlp.gate.weight", [experts, hidden])
    whose `experts_per_token` best serve a token, weighted by the softmax of their scores.
    """

    family: str  # "llama", "qwen3_moe"
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
    attention_bias: bool = False
    qk_norm: bool = False
    rope_divisors: tuple[float, ...] = ()
    rotary_dim: int = 0
    rope_magnitude: float = 1.0
    experts: int = 0
    experts_per_token: int = 0

    @property
    def turning_pairs(self) -> int:
        """Pairs of elements of a head that turn."""
        return (self.rotary_dim or self.head_dim) // 2

    def mlp_names(self) -> list[str]:
        """A layer's MLP, or its experts, by which their tensors' names begin."""
        return [f"mlp.experts.{number}" for number in range(self.experts)] or ["mlp"]

    def rotary_frequencies(self) -> npt.NDArray[np.float64]:
        """Radians by which the pairs of elements turn a position, float64 [head_dim / 2]."""
        exponents = -np.arange(self.turning_pairs) / self.turning_pairs
        turning = self.rope_theta**exponents / np.array(self.rope_divisors or 1.0)
        return np.pad(turning, (0, self.head_dim // 2 - self.turning_pairs))

    def rotary_tables(self, positions: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """cos and sin that the pairs turn by, float64 [positions, head_dim / 2] each."""
        angles = np.outer(np.arange(positions), self.rotary_frequencies())
        magnitude = np.where(
            np.arange(angles.shape[1]) < self.turning_pairs, self.rope_magnitude, 1
        )
        return np.cos(angles) * magnitude, np.sin(angles) * magnitude

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """The canonical name and shape of every tensor that a checkpoint has."""
        hidden, inner = self.hidden_size, self.intermediate_size
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        layer: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (hidden,),
            "self_attn.q_proj.weight": (queries, hidden),
            "self_attn.k_proj.weight": (keys, hidden),
            "self_attn.v_proj.weight": (keys, hidden),
            "self_attn.o_proj.weight": (hidden, queries),
            "post_attention_layernorm.weight": (hidden,),
        }
        for mlp in self.mlp_names():
            layer[f"{mlp}.gate_proj.weight"] = layer[f"{mlp}.up_proj.weight"] = (inner, hidden)
            layer[f"{mlp}.down_proj.weight"] = (hidden, inner)
        if self.experts:
            layer["mlp.gate.weight"] = (self.experts, hidden)
        if self.attention_bias:
            for part, size in (("q", queries), ("k", keys), ("v", keys)):
                layer[f"self_attn.{part}_proj.bias"] = (size,)
        if self.qk_norm:
            for part in ("q", "k"):
                layer[f"self_attn.{part}_norm.weight"] = (self.head_dim,)
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocabulary_size, hidden),
            "model.norm.weight": (hidden,),
        }
        if not self.tied_embeddings:
            shapes["lm_head.weight"] = (self.vocabulary_size, hidden)
        for number in range(self.layers):
            shapes |= {f"model.layers.{number}.{name}": shape for name, shape in layer.items()}
        return shapes


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

    @property
    def architecture(self) -> Architecture: ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...

    @property
    def bos_token_id(self) -> int | None:
        """The id that a text begins with; None where the model wants none there."""
        ...

    @property
    def tokenizer_json(self) -> str:
        """The `tokenizers` library's serialized form."""
        ...

    @property
    def chat_template(self) -> str | None:
        """Jinja source."""
        ...

    @property
    def source(self) -> Mapping[str, Any]:
        """Provenance for config.json: file name, format, sha256."""
        ...

    def tensor_names(self) -> list[str]: ...

    def tensor(self, name: str) -> Tensor:
        """The tensor of a canonical name. Raises KeyError."""
        ...
