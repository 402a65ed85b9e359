"""The operations that a step is made of.

Two implementations: `reference.py`, plain PyTorch for any device, and `fused.py`, Triton for a
GPU. Each writes its results into given tensors. The fused ones read lengths, tables and positions
on the device only, so that a captured graph serves whatever the scheduler fills in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Rotary:
    """cos and sin by which pairs of elements turn, float32 [context_length, head_dim / 2]."""

    cos: Tensor
    sin: Tensor


@dataclass(frozen=True, slots=True)
class Heads:
    """How a projected row is divided: queries, keys, values; gains of the heads' norms, if any."""

    heads: int
    kv_heads: int
    head_dim: int
    bias: Tensor | None  # [(heads + 2 * kv_heads) * head_dim], of the projection
    q_norm: Tensor | None  # [head_dim]
    k_norm: Tensor | None  # [head_dim]
    epsilon: float


@dataclass(frozen=True, slots=True)
class Projected:
    """Queries, keys and values as the product left them, and their places: of a step's tokens, or
    of some of them."""

    qkv: Tensor  # [parts, t, (heads + 2 * kv_heads) * head_dim], without the bias
    heads: Heads
    rotary: Rotary
    positions: Tensor  # int32 [t]
    entries: Tensor  # int32 [t], -1: not to be appended
    queries: Tensor  # [t, heads * head_dim], room for the rotated ones
    appended: bool = False  # `rotate_append` has had them

    @property
    def step_tokens(self) -> int:
        """Of the whole step: as many as a part holds, whichever of them these are."""
        return int(self.qkv.stride(0) // self.qkv.shape[2])

    def only(self, tokens: slice) -> Projected:
        """Some of these tokens, in the same memory."""
        return replace(
            self,
            qkv=self.qkv[:, tokens],
            positions=self.positions[tokens],
            entries=self.entries[tokens],
            queries=self.queries[tokens],
        )


@dataclass(frozen=True, slots=True)
class ExpertRoom:
    """Memory for a mixture of experts, for steps of up to `tokens` tokens; empty without experts.

    Pair token * chosen + j is a token and the j-th of its `chosen` experts.
    """

    scores: Tensor  # float32 [tokens, experts]
    chosen: Tensor  # int32 [tokens, chosen] experts, -1 for a token that takes no part
    shares: Tensor  # float32 [tokens, chosen] of the token's sum; they add up to 1
    inner: Tensor  # [tokens * chosen, intermediate] of each pair
    parts: Tensor  # [chosen * tokens, hidden]
    order: Tensor  # int32, pairs by expert, in blocks
    block_experts: Tensor  # int32, the expert of each block

    def parts_of(self, tokens: int) -> Tensor:
        """The parts of a step's sum, [chosen, tokens, hidden]."""
        chosen, hidden = self.chosen.shape[1], self.parts.shape[1]
        return self.parts[: chosen * tokens].view(chosen, tokens, hidden)


class Kernels(Protocol):
    """All shapes are those of `step_tensors`; `t` is the number of tokens of the step's key, or of
    one part of a mixed step.

    Weights are [out_features, in_features].
    """

    def product(self, x: Tensor, weight: Tensor, out: Tensor, t: int) -> Tensor:
        """t rows of x times `weight`, as parts to be added: [parts, t, out_features].

        The parts lie in `out` or in memory of the kernels' own, until the next product. x
        [t or more, in_features] and `out` [t or more, out_features] are all that there is room for:
        rows behind the first t may be read, whatever they hold, and those of `out` written.
        """
        ...

    def gated_product(self, x: Tensor, weight: Tensor, room: Tensor, out: Tensor, t: int) -> None:
        """t rows of out = silu(gate) * up, where the halves of `weight` give gate and up of x.

        `room` [t or more, 2 * out_features] may be written; of x and `out` see `product`.
        """
        ...

    def vocabulary_product(self, x: Tensor, weight: Tensor, out: Tensor) -> None:
        """float32 `out` = x times `weight`, also from bfloat16: rounded logits would make ties."""
        ...

    def choose_experts(self, scores: Tensor, entries: Tensor, room: ExpertRoom) -> None:
        """Each token's best experts by `scores`, float32 [t, experts], to `room`, best first.

        Their shares are the softmax of their scores. Tokens with entry -1 take no part.
        """
        ...

    def route(
        self,
        delta: Tensor,
        gain: Tensor,
        epsilon: float,
        residual: Tensor,
        out: Tensor,
        router: Tensor,
        entries: Tensor,
        room: ExpertRoom,
    ) -> None:
        """`add_norm`, then `choose_experts` by the product of its `out` with `router`.

        `residual` may lack `delta` until the parts of `expert_products` are added to it, and of
        the choice `room` may have the scores alone.
        """
        ...

    def expert_products(self, x: Tensor, gate_up: Tensor, down: Tensor, room: ExpertRoom) -> Tensor:
        """What the experts chosen for `x` [t, hidden] make of it, times their shares, in parts.

        `gate_up` is [experts, 2 * intermediate, hidden], `down` [experts, hidden, intermediate].
        The parts [parts, t, hidden], of which one may be what `route` has not added to the residual
        stream, are valid until the next call. Those of tokens that take no part have no meaning.
        """
        ...

    def locate_decode(
        self,
        start_positions: Tensor,
        lengths: Tensor,
        block_tables: Tensor,
        block_size: int,
        positions: Tensor,
        entries: Tensor,
    ) -> None:
        """Position and KV entry (block * block_size + offset) of each row's token.

        An inactive row gets position 0 and entry -1. `start_positions`, `lengths`, `positions`,
        `entries`: int32 [t].
        """
        ...

    def locate_prefill(
        self,
        start_positions: Tensor,
        cu_seqlens: Tensor,
        block_tables: Tensor,
        block_size: int,
        positions: Tensor,
        entries: Tensor,
        last: Tensor,
    ) -> None:
        """The same for packed tokens, and `last`: the place of each sequence's last token.

        Tokens that belong to no sequence get position 0 and entry -1. `cu_seqlens`: [sequences
        + 1]; `last`: [sequences], 0 or more also for a sequence without tokens.
        """
        ...

    def embed_norm(
        self,
        token_ids: Tensor,
        table: Tensor,
        gain: Tensor,
        epsilon: float,
        residual: Tensor,
        out: Tensor,
    ) -> None:
        """residual = table[token_ids]; out = its RMS norm times `gain`."""
        ...

    def add_norm(
        self,
        delta: Tensor,
        gain: Tensor,
        epsilon: float,
        residual: Tensor,
        out: Tensor,
    ) -> None:
        """residual += delta [parts, t, hidden]; out = its RMS norm times `gain`.

        There may be no parts.
        """
        ...

    def rotate_append(self, new: Projected, keys: Tensor, values: Tensor) -> None:
        """Rotated queries to `new.queries`, rotated keys and values to their KV entries.

        `keys`, `values`: [block_count, kv_heads, block_size, head_dim].
        """
        ...

    def attend_new(
        self,
        new: Projected,
        keys: Tensor,
        values: Tensor,
        lengths: Tensor,
        block_tables: Tensor,
        out: Tensor,
    ) -> None:
        """`rotate_append`, unless they are appended, then `decode_attention` of its queries.

        The queries may be left as they were. The tokens are the last of each row's `lengths`
        entries.
        """
        ...

    def appends(self, new: Projected) -> bool:
        """Does `attend_new` rotate and append these in the kernel that attends to them?

        Else that is a kernel of its own, which a step's other tokens can share.
        """
        ...

    def decode_attention(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        lengths: Tensor,
        block_tables: Tensor,
        out: Tensor,
    ) -> None:
        """Each row's query over its `lengths` entries; zeros for an inactive row."""
        ...

    def prefill_attention(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        start_positions: Tensor,
        cu_seqlens: Tensor,
        block_tables: Tensor,
        out: Tensor,
    ) -> None:
        """Causal attention of packed queries over all entries up to each token's own.

        Rows of `out` that belong to no sequence are left as they are.
        """
        ...
