"""What a step has to do at least, whatever its kernels: bytes it reads, and its arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from blink_persistent.engines.cuda.memory import kv_entry_bytes, weight_bytes
from blink_server.importers.checkpoint import Architecture

BANDWIDTH = 4.58e12  # bytes a second, the most that was measured to be read on an H200
PEAK = 989e12  # floating-point operations a second of dense bfloat16 products, its data sheet's


@dataclass(frozen=True, slots=True)
class Chunk:
    """`tokens` of one request that are computed in a step, after `start` entries of KV."""

    start: int
    tokens: int

    @property
    def entries(self) -> int:
        """Entries that its tokens attend to, each up to its own."""
        return self.tokens * self.start + self.tokens * (self.tokens + 1) // 2


def flop(shape: Architecture, chunks: Iterable[Chunk], sampled: int) -> int:
    """Of a step: 2 an element of a matrix and token, 4 an entry and element of a query.

    Of the vocabulary only `sampled` tokens are multiplied, of a mixture's experts those chosen.
    """
    chunks = list(chunks)
    queries = shape.heads * shape.head_dim
    keys = shape.kv_heads * shape.head_dim
    mlp = 3 * shape.hidden_size * shape.intermediate_size * (shape.experts_per_token or 1)
    layer = shape.hidden_size * (2 * queries + 2 * keys + shape.experts) + mlp
    tokens, entries = sum(c.tokens for c in chunks), sum(c.entries for c in chunks)
    vocabulary = 2 * shape.hidden_size * shape.vocabulary_size * sampled
    return shape.layers * (2 * layer * tokens + 4 * queries * entries) + vocabulary


def read_bytes(shape: Architecture, chunks: Sequence[Chunk], experts: int | None = None) -> int:
    """Weights and KV entries, each once. `experts`: those that are touched, over all layers.

    The vocabulary's matrix is read, the embedding not where it is a table of its own.
    """
    table = 0 if shape.tied_embeddings else 2 * shape.vocabulary_size * shape.hidden_size
    read = weight_bytes(shape) - table + sum(c.start for c in chunks) * kv_entry_bytes(shape)
    if experts is not None:
        each = 2 * 3 * shape.hidden_size * shape.intermediate_size
        read -= each * (shape.layers * shape.experts - experts)
    return read


def floor_us(
    shape: Architecture, chunks: Sequence[Chunk], sampled: int, experts: int | None = None
) -> float:
    """Microseconds: reading and computing at once, whichever takes longer."""
    read = read_bytes(shape, chunks, experts) / BANDWIDTH
    return 1e6 * max(read, flop(shape, chunks, sampled) / PEAK)


class CountingKernels:
    """Kernels that also count the experts that a step's tokens are sent to, over all layers."""

    def __init__(self, kernels: Any) -> None:
        self._kernels, self.experts = kernels, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernels, name)

    def route(self, *arguments: Any) -> None:
        self._kernels.route(*arguments)
        *_, entries, room = arguments
        scores = room.scores[: len(entries)][entries >= 0]
        self.experts += len(scores.topk(room.chosen.shape[1]).indices.unique())
