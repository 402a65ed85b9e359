"""Plain PyTorch for every operation: what the fused kernels are compared with, on any device.

It says what each operation means, one step after the other in float32, and reads lengths on the
host; so it cannot be captured.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from blink_persistent.engines.cuda.kernels.protocol import ExpertRoom, Projected


class ReferenceKernels:
    """Fulfils `Kernels`."""

    def product(self, x: Tensor, weight: Tensor, out: Tensor, t: int) -> Tensor:
        return torch.mm(x[:t], weight.t(), out=out[:t])[None]

    def gated_product(self, x: Tensor, weight: Tensor, room: Tensor, out: Tensor, t: int) -> None:
        self.swiglu(torch.mm(x[:t], weight.t(), out=room[:t]), out[:t])

    def vocabulary_product(self, x: Tensor, weight: Tensor, out: Tensor) -> None:
        library_logits(x, weight, out)

    def choose_experts(self, scores: Tensor, entries: Tensor, room: ExpertRoom) -> None:
        chosen = room.chosen.shape[1]
        best, experts = (x[:, :chosen] for x in scores.sort(dim=1, descending=True, stable=True))
        room.chosen[: len(scores)] = experts.int().masked_fill(entries[:, None] < 0, -1)
        room.shares[: len(scores)] = best.softmax(dim=1)

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
        scores = room.scores[: len(out)]
        self.add_norm(delta, gain, epsilon, residual, out)
        self.vocabulary_product(out, router, scores)
        self.choose_experts(scores, entries, room)

    def expert_products(self, x: Tensor, gate_up: Tensor, down: Tensor, room: ExpertRoom) -> Tensor:
        chosen, parts = room.chosen[: len(x)], room.parts_of(len(x))
        inner = room.inner.view(*room.chosen.shape, -1)
        for expert in range(len(down)):
            token, j = (chosen == expert).nonzero(as_tuple=True)
            gate, up = (x[token] @ gate_up[expert].t()).float().chunk(2, dim=1)
            inner[token, j] = (torch.nn.functional.silu(gate) * up).to(inner.dtype)
            product = (inner[token, j] @ down[expert].t()).float()
            parts[j, token] = (product * room.shares[token, j, None]).to(parts.dtype)
        return parts

    def locate_decode(
        self,
        start_positions: Tensor,
        lengths: Tensor,
        block_tables: Tensor,
        block_size: int,
        positions: Tensor,
        entries: Tensor,
    ) -> None:
        for row, length in enumerate(lengths.tolist()):
            at = int(start_positions[row]) if length > 0 else 0
            positions[row] = at
            entries[row] = _entry(block_tables[row], at, block_size) if length > 0 else -1

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
        positions.zero_()
        entries.fill_(-1)
        ends = cu_seqlens.tolist()
        for i, (first, end) in enumerate(itertools.pairwise(ends)):
            last[i] = max(end - 1, 0)
            for token in range(first, end):
                at = int(start_positions[i]) + token - first
                positions[token] = at
                entries[token] = _entry(block_tables[i], at, block_size)

    def embed_norm(
        self,
        token_ids: Tensor,
        table: Tensor,
        gain: Tensor,
        epsilon: float,
        residual: Tensor,
        out: Tensor,
    ) -> None:
        residual.copy_(table[token_ids.long()])
        out.copy_(_rms_norm(residual, gain, epsilon))

    def add_norm(
        self,
        delta: Tensor,
        gain: Tensor,
        epsilon: float,
        residual: Tensor,
        out: Tensor,
    ) -> None:
        residual.add_(delta.float().sum(dim=0))
        out.copy_(_rms_norm(residual, gain, epsilon))

    def rotate_append(self, new: Projected, keys: Tensor, values: Tensor) -> None:
        heads, rotary, entries = new.heads, new.rotary, new.entries
        split = [heads.heads, heads.kv_heads, heads.kv_heads]
        row = new.qkv.float().sum(dim=0)
        if heads.bias is not None:
            row += heads.bias.float()
        q, k, v = row.view(len(row), -1, heads.head_dim).split(split, dim=1)
        if heads.q_norm is not None and heads.k_norm is not None:
            q = _rms_norm(q, heads.q_norm, heads.epsilon)
            k = _rms_norm(k, heads.k_norm, heads.epsilon)
        at = new.positions.long()
        cos, sin = rotary.cos[at][:, None], rotary.sin[at][:, None]
        new.queries.copy_(_rotate(q, cos, sin).reshape(new.queries.shape))
        kept = (entries >= 0).nonzero().flatten()
        block, offset = entries[kept].long() // keys.shape[2], entries[kept].long() % keys.shape[2]
        keys[block, :, offset] = _rotate(k, cos, sin)[kept].to(keys.dtype)
        values[block, :, offset] = v[kept].to(values.dtype)

    def attend_new(
        self,
        new: Projected,
        keys: Tensor,
        values: Tensor,
        lengths: Tensor,
        block_tables: Tensor,
        out: Tensor,
    ) -> None:
        if not new.appended:
            self.rotate_append(new, keys, values)
        self.decode_attention(new.queries, keys, values, lengths, block_tables, out)

    def appends(self, new: Projected) -> bool:
        return False

    def decode_attention(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        lengths: Tensor,
        block_tables: Tensor,
        out: Tensor,
    ) -> None:
        for row, length in enumerate(lengths.tolist()):
            k, v = (_gather(pages, block_tables[row], length) for pages in (keys, values))
            out[row] = _attend(queries[row : row + 1], k, v, length - 1) if length > 0 else 0.0

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
        ends = cu_seqlens.tolist()
        for i, (first, end) in enumerate(itertools.pairwise(ends)):
            if end == first:
                continue
            start = int(start_positions[i])
            length = start + end - first
            k, v = (_gather(pages, block_tables[i], length) for pages in (keys, values))
            out[first:end] = _attend(queries[first:end], k, v, start).to(out.dtype)

    def swiglu(self, gate_up: Tensor, out: Tensor) -> None:
        """out = silu(gate) * up; gate is the first half of each row of `gate_up`."""
        gate, up = gate_up.float().chunk(2, dim=1)
        out.copy_(torch.nn.functional.silu(gate) * up)


def library_logits(x: Tensor, weight: Tensor, out: Tensor) -> None:
    """x times `weight` into float32 `out`, by PyTorch's library."""
    if x.dtype == torch.float32:
        torch.mm(x, weight.t(), out=out)
    elif x.is_cuda:
        torch.mm(x, weight.t(), out_dtype=torch.float32, out=out)
    else:
        torch.mm(x.float(), weight.float().t(), out=out)


def _entry(table: Tensor, position: int, block_size: int) -> int:
    return int(table[position // block_size]) * block_size + position % block_size


def _rms_norm(x: Tensor, gain: Tensor, epsilon: float) -> Tensor:
    mean_square = x.float().square().mean(dim=-1, keepdim=True)
    return x * torch.rsqrt(mean_square + epsilon) * gain.float()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Half-split: element i turns with element i + head_dim / 2."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def _gather(pages: Tensor, table: Tensor, length: int) -> Tensor:
    """The first `length` entries of a table, float32 [length, kv_heads, head_dim]."""
    count = -(-length // pages.shape[2])
    blocks = pages[table[:count].long()].transpose(1, 2)
    return blocks.reshape(-1, *blocks.shape[2:])[:length].float()


def _attend(queries: Tensor, keys: Tensor, values: Tensor, start: int) -> Tensor:
    """Queries [t, heads * head_dim] of the positions from `start` on, over keys up to their own."""
    head_dim = keys.shape[2]
    q = queries.float().view(len(queries), -1, head_dim)
    group = q.shape[1] // keys.shape[1]
    k, v = keys.repeat_interleave(group, dim=1), values.repeat_interleave(group, dim=1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * head_dim**-0.5
    own = torch.arange(len(q), device=q.device)[:, None] + start
    scores = scores.masked_fill(torch.arange(len(k), device=q.device) > own, -torch.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(dim=-1), v).reshape(len(q), -1)
