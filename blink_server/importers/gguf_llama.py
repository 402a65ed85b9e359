"""Llama models in GGUF: their sizes, their tensors' names and shapes, and the order of rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blink_server.importers.checkpoint import Architecture, QuantizedTensor, Tensor
from blink_server.importers.gguf_metadata import Metadata


@dataclass(frozen=True, slots=True)
class SourceTensor:
    """Where a canonical tensor comes from.

    `shape` is [rows, columns] or [columns]; `rotary_heads` is the number of heads whose rows the
    file interleaves for rotary embedding, 0 for other tensors.
    """

    name: str
    shape: tuple[int, ...]
    rotary_heads: int = 0


def read_architecture(metadata: Metadata, *, tied_embeddings: bool) -> Architecture:
    """The model's sizes. Raises `InvalidModel` for what this server cannot compute, by name."""
    _refuse_variants(metadata)
    hidden_size = metadata.count("llama.embedding_length")
    heads = metadata.count("llama.attention.head_count")
    kv_heads = metadata.count("llama.attention.head_count_kv", heads)
    if heads % kv_heads:
        raise metadata.invalid("llama.attention.head_count_kv", f"must divide {heads} heads")
    if hidden_size % heads and "llama.attention.key_length" not in metadata:
        raise metadata.invalid("llama.embedding_length", f"must be a multiple of {heads} heads")
    head_dim = metadata.count("llama.attention.key_length", max(hidden_size // heads, 1))
    for key in ("llama.attention.value_length", "llama.rope.dimension_count"):
        if metadata.count(key, head_dim) != head_dim:
            raise metadata.invalid(key, f"must be the size of a head, {head_dim}")
    if head_dim % 2:
        raise metadata.invalid("llama.rope.dimension_count", "must be even", show_value=False)
    vocabulary_size = len(metadata.texts("tokenizer.ggml.tokens"))
    if metadata.count("llama.vocab_size", vocabulary_size) != vocabulary_size:
        raise metadata.invalid(
            "llama.vocab_size", f"must be the number of tokens, {vocabulary_size}"
        )
    return Architecture(
        family="llama",
        layers=metadata.count("llama.block_count"),
        hidden_size=hidden_size,
        intermediate_size=metadata.count("llama.feed_forward_length"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocabulary_size=vocabulary_size,
        context_length=metadata.count("llama.context_length"),
        rope_theta=metadata.number("llama.rope.freq_base", 10000.0),
        rms_norm_eps=metadata.number("llama.attention.layer_norm_rms_epsilon"),
        tied_embeddings=tied_embeddings,
    )


def source_tensors(architecture: Architecture) -> dict[str, SourceTensor]:
    """Every tensor of the model: canonical name -> its name and shape in the file."""
    hidden, inner = architecture.hidden_size, architecture.intermediate_size
    heads, kv_heads = architecture.heads, architecture.kv_heads
    queries, keys = heads * architecture.head_dim, kv_heads * architecture.head_dim
    vocabulary = (architecture.vocabulary_size, hidden)
    tensors = {
        "model.embed_tokens.weight": SourceTensor("token_embd.weight", vocabulary),
        "model.norm.weight": SourceTensor("output_norm.weight", (hidden,)),
    }
    if not architecture.tied_embeddings:
        tensors["lm_head.weight"] = SourceTensor("output.weight", vocabulary)
    for layer in range(architecture.layers):
        for name, source in {
            "input_layernorm": SourceTensor("attn_norm", (hidden,)),
            "self_attn.q_proj": SourceTensor("attn_q", (queries, hidden), heads),
            "self_attn.k_proj": SourceTensor("attn_k", (keys, hidden), kv_heads),
            "self_attn.v_proj": SourceTensor("attn_v", (keys, hidden)),
            "self_attn.o_proj": SourceTensor("attn_output", (hidden, queries)),
            "post_attention_layernorm": SourceTensor("ffn_norm", (hidden,)),
            "mlp.gate_proj": SourceTensor("ffn_gate", (inner, hidden)),
            "mlp.up_proj": SourceTensor("ffn_up", (inner, hidden)),
            "mlp.down_proj": SourceTensor("ffn_down", (hidden, inner)),
        }.items():
            tensors[f"model.layers.{layer}.{name}.weight"] = SourceTensor(
                f"blk.{layer}.{source.name}.weight", source.shape, source.rotary_heads
            )
    return tensors


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


def _refuse_variants(metadata: Metadata) -> None:
    """Refuse what shares the name "llama" but would be computed wrongly."""
    if metadata.values.get("llama.expert_count", 0) != 0:
        raise metadata.invalid("llama.expert_count", "mixtures of experts are not supported")
    if metadata.values.get("llama.rope.scaling.type", "none") != "none":
        raise metadata.invalid("llama.rope.scaling.type", "scaled rotary is not supported")
    for key in ("llama.rope.scaling.factor", "llama.rope.scale_linear"):
        if metadata.number(key, 1.0) != 1.0:
            raise metadata.invalid(key, "scaled rotary is not supported")
