"""What a checkpoint must be for the graph builder; each problem named before work begins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from blink_persistent.engines.onnx_cpu.repack import BLOCK_SIZE
from blink_server.errors import InvalidModel, Problem
from blink_server.importers.checkpoint import Architecture, Checkpoint

# ONNX Runtime's rotary embedding works on heads of a multiple of this size.
_HEAD_MULTIPLE = 16


def refuse_unservable(checkpoint: Checkpoint, context_length: int) -> None:
    """Raise `InvalidModel` with every reason why no graph can be built for a checkpoint."""
    file = Path(str(checkpoint.source.get("file", "checkpoint")))
    architecture = checkpoint.architecture
    problems = [
        Problem(file, field, value, expected)
        for field, value, expected in _wrong_dimensions(architecture, context_length)
    ]
    if architecture.family == "llama":
        wanted, found = _tensor_names(architecture), set(checkpoint.tensor_names())
        problems += [Problem(file, name, None, "is missing") for name in sorted(wanted - found)]
        problems += [
            Problem(file, name, None, "is not part of a Llama decoder and would be ignored")
            for name in sorted(found - wanted)
            if not _harmless(name)
        ]
    if problems:
        raise InvalidModel(problems)


def _wrong_dimensions(
    architecture: Architecture, context_length: int
) -> Iterator[tuple[str, object, str]]:
    if architecture.family != "llama":
        yield "family", architecture.family, "this engine builds 'llama' decoders only"
    for field, size in (
        ("hidden_size", architecture.hidden_size),
        ("intermediate_size", architecture.intermediate_size),
        ("heads * head_dim", architecture.heads * architecture.head_dim),
    ):
        if size <= 0 or size % BLOCK_SIZE:
            yield field, size, f"must be a positive multiple of {BLOCK_SIZE}"
    if architecture.head_dim <= 0 or architecture.head_dim % _HEAD_MULTIPLE:
        yield "head_dim", architecture.head_dim, f"must be a positive multiple of {_HEAD_MULTIPLE}"
    if architecture.kv_heads <= 0 or architecture.heads % architecture.kv_heads:
        yield "kv_heads", architecture.kv_heads, f"must divide the {architecture.heads} heads"
    if not 2 <= context_length <= architecture.context_length:
        limit = architecture.context_length
        yield "context_length", context_length, f"must be from 2 to the model's {limit}"


def _tensor_names(architecture: Architecture) -> set[str]:
    names = {"model.embed_tokens.weight", "model.norm.weight"}
    if not architecture.tied_embeddings:
        names.add("lm_head.weight")
    parts = [
        "input_layernorm",
        "post_attention_layernorm",
        *(f"self_attn.{part}_proj" for part in "qkvo"),
        *(f"mlp.{part}_proj" for part in ("gate", "up", "down")),
    ]
    for layer in range(architecture.layers):
        names.update(f"model.layers.{layer}.{part}.weight" for part in parts)
    return names


def _harmless(name: str) -> bool:
    """Tensors that repeat what the architecture or another tensor says."""
    return name.endswith("rotary_emb.inv_freq") or name == "lm_head.weight"
