"""What a checkpoint must be for the graph builder; each problem named before work begins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from blink_persistent.engines.onnx_cpu.repack import BLOCK_SIZE
from blink_server.errors import InvalidModel, Problem
from blink_server.importers.checkpoint import Architecture, Checkpoint

# ONNX Runtime's rotary embedding works on heads of a multiple of this size.
_HEAD_MULTIPLE = 16

LONGEST_CONTEXT = 1 << 20
"""Positions that a graph has rotary tables for at most: 512 MiB of them with heads of 128."""

_USUAL_POSITIONS = 1 << 17


def rotary_positions(trained: int, context_length: int) -> int:
    """Positions that a graph is built for, so that its limit can be raised later without a build.

    All that the model was trained for, but no more than 131,072 unless the limit asks for more: a
    file may claim any number, and each costs memory.
    """
    return min(trained, max(context_length, _USUAL_POSITIONS))


def refuse_unservable(checkpoint: Checkpoint, context_length: int) -> None:
    """Raise `InvalidModel` with every reason why no graph can be built for a checkpoint."""
    file = Path(str(checkpoint.source.get("file", "checkpoint")))
    architecture = checkpoint.architecture
    problems = [
        Problem(file, field, value, expected)
        for field, value, expected in _wrong_dimensions(architecture, context_length)
    ]
    if architecture.family == "llama":
        wanted, found = set(architecture.tensor_shapes()), set(checkpoint.tensor_names())
        problems += [Problem(file, name, None, "is missing") for name in sorted(wanted - found)]
        problems += [
            Problem(file, name, None, "is not part of the architecture and would be ignored")
            for name in sorted(found - wanted)
            if not _harmless(name)
        ]
    if problems:
        raise InvalidModel(problems)


def _wrong_dimensions(
    architecture: Architecture, context_length: int
) -> Iterator[tuple[str, object, str]]:
    if architecture.family != "llama":
        expected = "this engine builds 'llama' decoders only: the engine 'cuda' may serve it"
        yield "family", architecture.family, expected
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
    divisors = architecture.rope_divisors
    if divisors and len(divisors) != architecture.turning_pairs:
        expected = f"must be one a pair of elements, {architecture.turning_pairs}, or none"
        yield "rope_divisors", f"{len(divisors)} numbers", expected
    if not 2 <= context_length <= architecture.context_length:
        limit = architecture.context_length
        yield "context_length", context_length, f"must be from 2 to the model's {limit}"
    elif context_length > LONGEST_CONTEXT:
        yield "context_length", context_length, f"this engine's longest is {LONGEST_CONTEXT}"


def _harmless(name: str) -> bool:
    """Tensors that repeat what the architecture or another tensor says."""
    return name.endswith("rotary_emb.inv_freq") or name == "lm_head.weight"
