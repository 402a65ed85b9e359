"""The operations as Triton kernels, each launched with a grid that follows from the key alone."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from blink_persistent.engines.cuda.kernels.ahead.attention import AheadAttention
from blink_persistent.engines.cuda.kernels.ahead.one_token_experts import OneTokenExperts
from blink_persistent.engines.cuda.kernels.ahead.primed_norm import PrimedNorm
from blink_persistent.engines.cuda.kernels.ahead.products import MakeAhead, no_ahead
from blink_persistent.engines.cuda.kernels.attention import Attention
from blink_persistent.engines.cuda.kernels.cuts.choices import (
    Cuts,
    DecodeTiling,
    ExpertTiling,
    PaddedRows,
    Shape,
    row_tile,
)
from blink_persistent.engines.cuda.kernels.cuts.hopper import measured, prefills_by_pages
from blink_persistent.engines.cuda.kernels.cuts.hopper_library import measured_rows
from blink_persistent.engines.cuda.kernels.cuts.likely_cuts import step_products
from blink_persistent.engines.cuda.kernels.experts import Experts
from blink_persistent.engines.cuda.kernels.in_triton import located, norm, rotary
from blink_persistent.engines.cuda.kernels.products import Products
from blink_persistent.engines.cuda.kernels.protocol import ExpertRoom, Projected
from blink_server.importers.checkpoint import Architecture

LOCATE_TILE = 256


class FusedKernels(Products, Attention, Experts):
    """Fulfils `Kernels` for one model's shapes.

    `processors` are the multiprocessors that the engine may fill: one fewer than the device has,
    since the scheduler resides on it. Steps must not overlap, as they share scratch memory.
    """

    def __init__(
        self,
        architecture: Architecture,
        *,
        max_rows: int,
        capacity: int,
        processors: int,
        chained: bool,
        device: Any,
        decode: DecodeTiling | None = None,
        cuts: Cuts | None = None,
        padded: PaddedRows | None = None,
        experts: ExpertTiling | None = None,
        make_ahead: MakeAhead = no_ahead,
        ahead_attention: AheadAttention | None = None,
        primed_norm: PrimedNorm | None = None,
        one_token_experts: OneTokenExperts | None = None,
    ) -> None:
        """For up to `max_rows` rows with block tables of `capacity` entries.

        `chained`: where products are streamed, launch each kernel while the one before it ends,
        which needs a Hopper GPU.
        `decode`, `cuts` and `experts`: how attention and products are cut; by default what was
        measured on such a device, without those that read ahead. `make_ahead`: what runs the
        products of this model's `cuts` that do. `padded`: how many rows the library multiplies, by
        default what was measured, too.
        `ahead_attention`, `primed_norm` and `one_token_experts` take the place of others where
        they can.
        """
        on_gpu = torch.device(device).type == "cuda"
        capability = torch.cuda.get_device_capability(device) if on_gpu else (0, 0)
        known, tilings = measured(capability)
        self._ahead_attention, self._primed_norm = ahead_attention, primed_norm
        cuts = known if cuts is None else cuts
        shapes = {product.shape for product in step_products(architecture)}
        own = {key: cut for key, cut in cuts.items() if key[0] in shapes}
        Products.__init__(
            self,
            product_shapes(architecture),
            cuts,
            chained=chained,
            device=device,
            ahead=make_ahead(own),
            padded=measured_rows(capability) if padded is None else padded,
        )
        Attention.__init__(
            self,
            architecture,
            max_rows=max_rows,
            capacity=capacity,
            processors=processors,
            chain=self.chain,
            device=device,
            tilings=tilings,
            always=decode,
            by_pages=prefills_by_pages(architecture, capability),
        )
        Experts.__init__(self, self.chain, experts, one_token_experts)

    def locate_decode(
        self,
        start_positions: Tensor,
        lengths: Tensor,
        block_tables: Tensor,
        block_size: int,
        positions: Tensor,
        entries: Tensor,
    ) -> None:
        rows, max_blocks = block_tables.shape
        located.locate_decode[(triton.cdiv(rows, LOCATE_TILE),)](
            start_positions, lengths, block_tables, positions, entries, rows, max_blocks,
            BLOCK_SIZE=block_size, TILE=LOCATE_TILE, **self.chain(rows),
        )  # fmt: skip

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
        tokens, (sequences, max_blocks) = len(positions), block_tables.shape
        located.locate_prefill[(triton.cdiv(tokens, LOCATE_TILE),)](
            start_positions, cu_seqlens, block_tables, positions, entries, last,
            tokens, sequences, max_blocks,
            BLOCK_SIZE=block_size, TILE=LOCATE_TILE, **self.chain(tokens),
        )  # fmt: skip

    def embed_norm(
        self,
        token_ids: Tensor,
        table: Tensor,
        gain: Tensor,
        epsilon: float,
        residual: Tensor,
        out: Tensor,
    ) -> None:
        tokens, size = residual.shape
        norm.embed_norm[(tokens,)](
            token_ids, table, gain, residual, out, epsilon,
            SIZE=size, TILE=triton.next_power_of_2(size),
            num_warps=norm_warps(size, tokens), **self.chain(tokens),
        )  # fmt: skip

    def add_norm(
        self,
        delta: Tensor,
        gain: Tensor,
        epsilon: float,
        residual: Tensor,
        out: Tensor,
    ) -> None:
        tokens, size = residual.shape
        if self._primed_norm is not None and self._primed_norm.takes(delta):
            chained = self.chain(tokens)["CHAINED"]
            self._primed_norm(delta, gain, epsilon, residual, out, chained=chained)
            return
        norm.add_norm[(tokens,)](
            delta, gain, residual, out, epsilon, tokens, PARTS=len(delta),
            SIZE=size, TILE=triton.next_power_of_2(size),
            num_warps=norm_warps(size, tokens), **self.chain(tokens),
        )  # fmt: skip

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
        tokens = len(out)
        if self._one_token is not None and tokens == 1:
            given, chained = (delta, gain, epsilon, residual, out), self.chain(tokens)["CHAINED"]
            self._one_token.route(*given, router, room, chained=chained)
            return
        self.add_norm(delta, gain, epsilon, residual, out)
        scores = room.scores[:tokens]
        self.vocabulary_product(out, router, scores)
        self.choose_experts(scores, entries, room)

    def rotate_append(self, new: Projected, keys: Tensor, values: Tensor) -> None:
        heads, qkv = new.heads, new.qkv
        normed, biased = heads.q_norm is not None, heads.bias is not None
        parts, tokens, _ = qkv.shape
        rotary.rotate_append[(tokens, heads.kv_heads)](
            qkv,
            heads.bias if biased else qkv,
            heads.q_norm if normed else qkv,
            heads.k_norm if normed else qkv,
            new.rotary.cos,
            new.rotary.sin,
            new.positions,
            new.entries,
            keys,
            values,
            new.queries,
            heads.epsilon,
            new.step_tokens,
            PARTS=parts,
            HEADS=heads.heads,
            KV_HEADS=heads.kv_heads,
            HEAD_DIM=heads.head_dim,
            BLOCK_SIZE=keys.shape[2],
            BIASED=biased,
            NORMED=normed,
            GROUP_TILE=triton.next_power_of_2(heads.heads // heads.kv_heads),
            HALF_TILE=triton.next_power_of_2(heads.head_dim // 2),
            num_warps=1 if parts > 1 else 2,  # more would load parts one after the other
            **self.chain(new.step_tokens),
        )

    def attend_new(
        self,
        new: Projected,
        keys: Tensor,
        values: Tensor,
        lengths: Tensor,
        block_tables: Tensor,
        out: Tensor,
    ) -> None:
        if self._ahead_attention is not None and self.appends(new):
            chained = self.chain(new.step_tokens)["CHAINED"]
            self._ahead_attention(new, keys, values, lengths, block_tables, out, chained=chained)
            return
        if not new.appended:
            self.rotate_append(new, keys, values)
        self.decode_attention(new.queries, keys, values, lengths, block_tables, out)

    def appends(self, new: Projected) -> bool:
        ahead = self._ahead_attention
        return ahead is not None and not new.appended and ahead.takes(new)


def norm_warps(size: int, tokens: int) -> int:
    """So many that few tokens' programs have all their loads under way at once."""
    if row_tile(tokens) is None:
        return 8
    return max(4, min(int(triton.next_power_of_2(size)) // 128, 32))


def product_shapes(architecture: Architecture) -> list[Shape]:
    """Of the weights that `product` is given: queries with keys and values, output, down.

    With experts the router's instead of down's: all that a chain of kernels depends on.
    """
    queries = architecture.heads * architecture.head_dim
    keys = architecture.kv_heads * architecture.head_dim
    hidden = architecture.hidden_size
    return [
        (queries + 2 * keys, hidden),
        (hidden, queries),
        (architecture.experts, hidden)
        if architecture.experts
        else (hidden, architecture.intermediate_size),
    ]
