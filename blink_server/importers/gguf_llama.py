"""Llama, Qwen 2 and Qwen 3 in GGUF: sizes, names and shapes of tensors, and the order of rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blink_server.importers.checkpoint import Architecture, QuantizedTensor, Tensor
from blink_server.importers.gguf_metadata import Metadata

_NAMES = {
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_output",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
}


@dataclass(frozen=True, slots=True)
class SourceTensor:
    """Where a canonical tensor comes from.

    `shape` is [rows, columns] or [columns]; `rotary_heads` is the number of heads whose rows the
    file interleaves for rotary embedding, 0 for other tensors.
    """

    name: str
    shape: tuple[int, ...]
    rotary_heads: int = 0


@dataclass(frozen=True, slots=True)
class _Family:
    """How models of one "general.architecture" differ from Llama's canonical form."""

    attention_bias: bool = False
    qk_norm: bool = False
    interleaves: bool = False  # rows of queries and keys are in interleaved rotary order


FAMILIES = {
    "llama": _Family(interleaves=True),  # and Mistral, which converters call so too
    "qwen2": _Family(attention_bias=True),
    "qwen3": _Family(qk_norm=True),
}


def read_architecture(
    metadata: Metadata, *, tied_embeddings: bool, frequency_divisors: tuple[float, ...]
) -> Architecture:
    """The model's sizes; `frequency_divisors` are those of the file's own table, if it has one.

    A sliding window is honoured by a context no longer than the window, within which it has no
    effect. Raises `InvalidModel` for what this server cannot compute, by name.
    """
    name = metadata.text("general.architecture")
    if name not in FAMILIES:
        supported = ", ".join(repr(family) for family in FAMILIES)
        raise metadata.invalid("general.architecture", f"supported are {supported}")
    _refuse_variants(metadata, name)
    hidden_size = metadata.count(f"{name}.embedding_length")
    heads = metadata.count(f"{name}.attention.head_count")
    kv_heads = metadata.count(f"{name}.attention.head_count_kv", heads)
    if heads % kv_heads:
        raise metadata.invalid(f"{name}.attention.head_count_kv", f"must divide {heads} heads")
    head_dim = _head_dim(metadata, name, hidden_size, heads)
    longest = metadata.count(f"{name}.context_length")
    return Architecture(
        family="llama",
        layers=metadata.count(f"{name}.block_count"),
        hidden_size=hidden_size,
        intermediate_size=metadata.count(f"{name}.feed_forward_length"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocabulary_size=_vocabulary_size(metadata, name),
        context_length=min(longest, metadata.count(f"{name}.attention.sliding_window", longest)),
        rope_theta=metadata.number(f"{name}.rope.freq_base", 10000.0),
        rms_norm_eps=metadata.number(f"{name}.attention.layer_norm_rms_epsilon"),
        tied_embeddings=tied_embeddings,
        attention_bias=FAMILIES[name].attention_bias,
        qk_norm=FAMILIES[name].qk_norm,
        rope_divisors=_rope_divisors(metadata, name, head_dim, frequency_divisors),
    )


def _head_dim(metadata: Metadata, name: str, hidden_size: int, heads: int) -> int:
    if hidden_size % heads and f"{name}.attention.key_length" not in metadata:
        raise metadata.invalid(f"{name}.embedding_length", f"must be a multiple of {heads} heads")
    head_dim = metadata.count(f"{name}.attention.key_length", max(hidden_size // heads, 1))
    for key in (f"{name}.attention.value_length", f"{name}.rope.dimension_count"):
        if metadata.count(key, head_dim) != head_dim:
            raise metadata.invalid(key, f"must be the size of a head, {head_dim}")
    if head_dim % 2:
        key = f"{name}.rope.dimension_count"
        raise metadata.invalid(key, "must be even", show_value=False)
    return head_dim


def _vocabulary_size(metadata: Metadata, name: str) -> int:
    size = len(metadata.texts("tokenizer.ggml.tokens"))
    if metadata.count(f"{name}.vocab_size", size) != size:
        raise metadata.invalid(f"{name}.vocab_size", f"must be the number of tokens, {size}")
    return size


def _rope_divisors(
    metadata: Metadata, name: str, head_dim: int, table: tuple[float, ...]
) -> tuple[float, ...]:
    """The file's table of divisors, and its linear factor, as one."""
    if table and len(table) != head_dim // 2:
        expected = f"must be the size of a head, twice the {len(table)} of rope_freqs.weight"
        raise metadata.invalid(f"{name}.rope.dimension_count", expected)
    factor = 1.0
    kind = metadata.values.get(f"{name}.rope.scaling.type", "linear")
    if kind not in ("none", "linear"):
        expected = "supported are 'none', 'linear'"
        raise metadata.invalid(f"{name}.rope.scaling.type", expected)
    if kind == "linear":
        factor = metadata.number(f"{name}.rope.scale_linear", 1.0)
        factor = metadata.number(f"{name}.rope.scaling.factor", factor)
    if not table and factor == 1.0:
        return ()
    return tuple(factor * divisor for divisor in table or (1.0,) * (head_dim // 2))


def source_tensors(architecture: Architecture, name: str) -> dict[str, SourceTensor]:
    """Every tensor of a model of "general.architecture" `name`: canonical name -> in the file."""
    rotary_heads = {"q_proj": architecture.heads, "k_proj": architecture.kv_heads}
    sources = {}
    for canonical, shape in architecture.tensor_shapes().items():
        *place, part, kind = canonical.split(".")
        heads = rotary_heads.get(part, 0) if FAMILIES[name].interleaves else 0
        layer = f"blk.{place[2]}." if len(place) > 2 else ""
        sources[canonical] = SourceTensor(f"{layer}{_NAMES[part]}.{kind}", shape, heads)
    return sources


def undo_interleaving(tensor: Tensor, heads: int) -> Tensor:
    """Rows [heads * head_dim, columns] from interleaved to half-split rotary order.

    Converters to GGUF store the rows of a head as (0, d/2, 1, d/2 + 1, ...). Quantization blocks
    run along columns, so that moving whole rows changes no value.
    """
    rows = tensor.shape[0]
    order = np.arange(rows).reshape(heads, rows // heads // 2, 2).swapaxes(1, 2).reshape(rows)
    if isinstance(tensor, QuantizedTensor):
        return QuantizedTensor(
            bits=tensor.bits,
            block_size=tensor.block_size,
            codes=tensor.codes[order],
            scale=tensor.scale[order],
            minimum=tensor.minimum[order],
        )
    reordered: npt.NDArray[np.float32] = tensor[order]
    return reordered


def _refuse_variants(metadata: Metadata, name: str) -> None:
    """Refuse what shares a supported name but would be computed wrongly."""
    if metadata.values.get(f"{name}.expert_count", 0) != 0:
        raise metadata.invalid(f"{name}.expert_count", "mixtures of experts are not supported")
