"""The scheduler's step buffers and the engine's own memory, as tensors at fixed addresses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from blink_persistent.engines.cuda.kernels.cuts.choices import expert_order_room
from blink_persistent.engines.cuda.kernels.protocol import ExpertRoom
from blink_persistent.gpu.structs import EngineTables
from blink_persistent.graph_grid import DECODE
from blink_server.importers.checkpoint import Architecture


@dataclass(frozen=True, slots=True)
class StepInputs:
    """One phase's inputs (`PhaseBuffers` in provisioned.h), all int32 and on the device.

    n is the phase's most rows or sequences; `token_ids` is [max_rows] for decode,
    [max_prefill_tokens] packed for prefill.
    """

    token_ids: Tensor
    start_positions: Tensor  # [n] KV entries before the step
    lengths: Tensor  # [n] KV entries after it, 0 = inactive
    cu_seqlens: Tensor  # [n + 1]
    block_tables: Tensor  # [n, max_blocks]


class _DeviceArray:
    """An address as an array that PyTorch can take over without a copy."""

    def __init__(self, address: int, shape: tuple[int, ...]) -> None:
        self.__cuda_array_interface__ = {
            "data": (address, False),
            "shape": shape,
            "typestr": "<i4",
            "version": 3,
        }


def device_words(address: int, *shape: int, device: Any) -> Tensor:
    """int32 words that lie on the device already; valid as long as they do."""
    return torch.as_tensor(_DeviceArray(address, shape), device=device)


def device_inputs(tables: EngineTables, phase: int, *, device: Any) -> StepInputs:
    """Views of the step buffers that the scheduler fills."""
    buffers = tables.buffers[phase]
    n = tables.max_rows if phase == DECODE else tables.max_sequences
    tokens = tables.max_rows if phase == DECODE else tables.max_prefill_tokens

    def view(address: int, *shape: int) -> Tensor:
        return device_words(address, *shape, device=device)

    return StepInputs(
        token_ids=view(buffers.token_ids, tokens),
        start_positions=view(buffers.start_positions, n),
        lengths=view(buffers.lengths, n),
        cu_seqlens=view(buffers.cu_seqlens, n + 1),
        block_tables=view(buffers.block_tables, n, tables.max_blocks),
    )


def empty_inputs(n: int, tokens: int, max_blocks: int, *, device: Any) -> StepInputs:
    """Zeroed step buffers of the engine's own."""

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int32, device=device)

    return StepInputs(zeros(tokens), zeros(n), zeros(n), zeros(n + 1), zeros(n, max_blocks))


@dataclass(frozen=True, slots=True)
class KvCache:
    """Paged keys and values: entry `offset` of `block` is [block, head, offset].

    `pages` is [layers, 2, block_count, kv_heads, block_size, head_dim]; block 0 is the null block.
    """

    pages: Tensor

    @classmethod
    def allocate(
        cls,
        architecture: Architecture,
        block_count: int,
        block_size: int,
        *,
        device: Any,
        dtype: torch.dtype,
    ) -> KvCache:
        shape = (architecture.kv_heads, block_size, architecture.head_dim)
        whole = (architecture.layers, 2, block_count, *shape)
        pages = torch.empty(whole, dtype=dtype, device=device)
        for layer in pages:  # all of it at once would take tens of milliseconds
            layer.zero_()
        return cls(pages)

    def layer(self, number: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer, [block_count, kv_heads, block_size, head_dim] each."""
        return self.pages[number, 0], self.pages[number, 1]

    @property
    def block_size(self) -> int:
        """Entries of a block."""
        return int(self.pages.shape[4])


@dataclass(frozen=True, slots=True)
class Workspace:
    """What a step writes between its kernels; every step of every key uses the same memory.

    Rows beyond a step's tokens may hold anything: products may be computed of them too. The
    residual stream and the logits are float32, the rest has the weights' dtype.
    """

    positions: Tensor  # int32 [tokens]
    entries: Tensor  # int32 [tokens]
    residual: Tensor  # [tokens, hidden]
    normed: Tensor  # [tokens, hidden]
    qkv: Tensor  # [tokens, (heads + 2 * kv_heads) * head_dim]
    queries: Tensor  # [tokens, heads * head_dim]
    mixed: Tensor  # [tokens, heads * head_dim]
    delta: Tensor  # [tokens, hidden]
    gate_up: Tensor  # [tokens, 2 * intermediate], empty with experts
    inner: Tensor  # [tokens, intermediate], empty with experts
    experts: ExpertRoom
    last: Tensor  # int32 [n] place of each sequence's last token, then of rows beside them
    last_hidden: Tensor  # [n, hidden]
    logits: Tensor  # [n, vocabulary]

    @classmethod
    def allocate(
        cls, architecture: Architecture, tokens: int, n: int, *, device: Any, dtype: torch.dtype
    ) -> Workspace:
        """For steps of up to `tokens` tokens that sample up to `n` rows and sequences together."""
        queries = architecture.heads * architecture.head_dim
        keys = architecture.kv_heads * architecture.head_dim
        dense = 0 if architecture.experts else tokens

        def zeros(*shape: int, kind: torch.dtype = dtype) -> Tensor:
            return torch.zeros(shape, dtype=kind, device=device)

        return cls(
            positions=zeros(tokens, kind=torch.int32),
            entries=zeros(tokens, kind=torch.int32),
            residual=zeros(tokens, architecture.hidden_size, kind=torch.float32),
            normed=zeros(tokens, architecture.hidden_size),
            qkv=zeros(tokens, queries + 2 * keys),
            queries=zeros(tokens, queries),
            mixed=zeros(tokens, queries),
            delta=zeros(tokens, architecture.hidden_size),
            gate_up=zeros(dense, 2 * architecture.intermediate_size),
            inner=zeros(dense, architecture.intermediate_size),
            experts=_expert_room(architecture, tokens, zeros),
            last=zeros(n, kind=torch.int32),
            last_hidden=zeros(n, architecture.hidden_size),
            logits=zeros(n, architecture.vocabulary_size, kind=torch.float32),
        )


def _expert_room(
    architecture: Architecture, tokens: int, zeros: Callable[..., Tensor]
) -> ExpertRoom:
    experts, chosen = architecture.experts, architecture.experts_per_token
    blocks, places = expert_order_room(tokens, experts, chosen) if experts else (0, 0)
    return ExpertRoom(
        scores=zeros(tokens, experts, kind=torch.float32),
        chosen=zeros(tokens, chosen, kind=torch.int32),
        shares=zeros(tokens, chosen, kind=torch.float32),
        inner=zeros(tokens * chosen, architecture.intermediate_size),
        parts=zeros(tokens * chosen, architecture.hidden_size),
        order=zeros(places, kind=torch.int32),
        block_experts=zeros(blocks, kind=torch.int32),
    )
