"""Drives a `cuda` decoder by hand, filling its step buffers as the scheduler does.

paged = PagedDecoder.build(architecture, weights, ReferenceKernels(), device="cpu")
logits = paged.prefill([Part(blocks=(3, 1), start=0, token_ids=(5, 6, 7))])
logits = paged.decode([Part(blocks=(3, 1), start=3, token_ids=(8,))])
both = paged.mixed([Part(blocks=(2,), start=0, token_ids=(5,))], [Part((3, 1), 4, (9,))])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from blink_persistent.engines.cuda.kernels.protocol import Kernels
from blink_persistent.engines.cuda.model import Decoder, rotary_tables
from blink_persistent.engines.cuda.step_tensors import (
    KvCache,
    StepInputs,
    Workspace,
    empty_inputs,
)
from blink_persistent.engines.cuda.weights import Weights
from blink_persistent.testing.step_parts import INACTIVE, STALE_TOKEN, Part
from blink_server.importers.checkpoint import Architecture

__all__ = ["INACTIVE", "PagedDecoder", "Part"]


@dataclass(frozen=True, slots=True)
class PagedDecoder:
    """A decoder with step buffers of its own."""

    decoder: Decoder
    decode_inputs: StepInputs
    prefill_inputs: StepInputs

    @classmethod
    def build(
        cls,
        architecture: Architecture,
        weights: Weights,
        kernels: Kernels,
        *,
        device: Any,
        rows: int = 8,
        tokens: int = 64,
        block_size: int = 16,
        block_count: int = 32,
    ) -> PagedDecoder:
        """Room for `rows` rows, as many sequences, and `tokens` packed tokens."""
        dtype = weights.embedding.dtype
        limit = architecture.context_length
        places = {"device": device, "dtype": dtype}
        decoder = Decoder(
            architecture=architecture,
            weights=weights,
            rotary=rotary_tables(architecture, limit, device=device),
            cache=KvCache.allocate(architecture, block_count, block_size, **places),
            work=Workspace.allocate(architecture, tokens + rows, 2 * rows, **places),
            kernels=kernels,
        )
        blocks = -(-limit // block_size)
        return cls(
            decoder,
            empty_inputs(rows, rows, blocks, device=device),
            empty_inputs(rows, tokens, blocks, device=device),
        )

    def prefill(
        self, parts: Sequence[Part], *, sequences: int | None = None, tokens: int | None = None
    ) -> torch.Tensor:
        """Logits [len(parts), vocabulary] of one step of the key (sequences, tokens)."""
        self.fill_prefill(parts)
        sequences, packed = sequences or len(parts), sum(len(part.token_ids) for part in parts)
        logits = self.decoder.prefill(self.prefill_inputs, sequences, tokens or packed)
        return logits[: len(parts)].clone()

    def decode(self, parts: Sequence[Part], *, rows: int | None = None) -> torch.Tensor:
        """Logits [len(parts), vocabulary] of one step of `rows` rows."""
        self.fill_decode(parts)
        logits = self.decoder.decode(self.decode_inputs, rows or len(parts))
        return logits[: len(parts)].clone()

    def mixed(
        self,
        parts: Sequence[Part],
        rows: Sequence[Part],
        *,
        key: tuple[int, int, int] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits of `parts` and of `rows`, of one step of the key (sequences, tokens, rows)."""
        self.fill_prefill(parts)
        self.fill_decode(rows)
        packed = sum(len(part.token_ids) for part in parts)
        key = key or (len(parts), packed, len(rows))
        logits = self.decoder.mixed(self.prefill_inputs, self.decode_inputs, *key).clone()
        return logits[: len(parts)], logits[key[0] : key[0] + len(rows)]

    def fill_prefill(self, parts: Sequence[Part]) -> None:
        """Write the inputs alone."""
        inputs = self.prefill_inputs
        packed = [token for part in parts for token in part.token_ids]
        inputs.token_ids.fill_(STALE_TOKEN)
        inputs.token_ids[: len(packed)] = _int32(packed)
        ends = [sum(len(part.token_ids) for part in parts[:i]) for i in range(len(parts) + 1)]
        inputs.cu_seqlens.fill_(len(packed))
        inputs.cu_seqlens[: len(ends)] = _int32(ends)
        _fill_common(inputs, parts)

    def fill_decode(self, parts: Sequence[Part]) -> None:
        """Write the inputs alone; a part without tokens is an inactive row."""
        inputs = self.decode_inputs
        inputs.token_ids.zero_()
        for row, part in enumerate(parts):
            if part.token_ids:
                inputs.token_ids[row] = part.token_ids[0]
        _fill_common(inputs, parts)

    def entries(self, blocks: Sequence[int], length: int) -> torch.Tensor:
        """The first `length` entries of a table, [layers, 2, length, kv_heads, head_dim]."""
        pages = self.decoder.cache.pages[:, :, list(blocks)].transpose(3, 4)
        layers, two, _, _, heads, size = pages.shape
        return pages.reshape(layers, two, -1, heads, size)[:, :, :length]


def _fill_common(inputs: StepInputs, parts: Sequence[Part]) -> None:
    inputs.start_positions.zero_()
    inputs.lengths.zero_()
    inputs.block_tables.zero_()
    for i, part in enumerate(parts):
        if not part.token_ids:
            continue
        inputs.start_positions[i] = part.start
        inputs.lengths[i] = part.start + len(part.token_ids)
        inputs.block_tables[i, : len(part.blocks)] = _int32(part.blocks)


def _int32(values: Sequence[int]) -> torch.Tensor:
    return torch.tensor(list(values), dtype=torch.int32)
