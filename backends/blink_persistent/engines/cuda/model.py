"""The decoder as plain functions over preallocated tensors: one decode step, one prefill step.

A step reads its inputs from the scheduler's buffers and writes KV entries and logits. It
allocates nothing, asks the device nothing, and its shapes follow from the graph's key alone, so
that with the fused kernels it can be captured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from blink_persistent.engines.cuda.kernels.protocol import Heads, Kernels, Rotary
from blink_persistent.engines.cuda.step_tensors import KvCache, StepInputs, Workspace
from blink_persistent.engines.cuda.weights import LayerWeights, Weights
from blink_server.importers.checkpoint import Architecture

Attend = Callable[[Tensor, Tensor, Tensor, Tensor], None]


def rotary_tables(architecture: Architecture, context_length: int, *, device: Any) -> Rotary:
    """cos and sin for every position, computed in float64."""
    cos, sin = (
        torch.from_numpy(table).to(device=device, dtype=torch.float32)
        for table in architecture.rotary_tables(context_length)
    )
    return Rotary(cos, sin)


@dataclass(frozen=True, slots=True)
class Decoder:
    """One model in memory. Its steps run on the current stream; one at a time."""

    architecture: Architecture
    weights: Weights
    rotary: Rotary
    cache: KvCache
    work: Workspace
    kernels: Kernels

    def decode(self, inputs: StepInputs, rows: int) -> Tensor:
        """One token of each row. Logits, float32 [rows, vocabulary], a view of the workspace."""
        lengths, tables = inputs.lengths[:rows], inputs.block_tables[:rows]
        self.kernels.locate_decode(
            inputs.start_positions[:rows],
            lengths,
            tables,
            self.cache.block_size,
            self.work.positions[:rows],
            self.work.entries[:rows],
        )

        def attend(queries: Tensor, keys: Tensor, values: Tensor, out: Tensor) -> None:
            self.kernels.decode_attention(queries, keys, values, lengths, tables, out)

        return self._logits(self._layers(inputs.token_ids[:rows], attend))

    def prefill(self, inputs: StepInputs, sequences: int, tokens: int) -> Tensor:
        """Packed tokens of several prompts, each from its start position on.

        Logits of each sequence's last token, float32 [sequences, vocabulary]; without meaning
        for a sequence that has no tokens.
        """
        starts, ends = inputs.start_positions[:sequences], inputs.cu_seqlens[: sequences + 1]
        tables, last = inputs.block_tables[:sequences], self.work.last[:sequences]
        self.kernels.locate_prefill(
            starts,
            ends,
            tables,
            self.cache.block_size,
            self.work.positions[:tokens],
            self.work.entries[:tokens],
            last,
        )

        def attend(queries: Tensor, keys: Tensor, values: Tensor, out: Tensor) -> None:
            self.kernels.prefill_attention(queries, keys, values, starts, ends, tables, out)

        hidden = self._layers(inputs.token_ids[:tokens], attend)
        return self._logits(
            torch.index_select(hidden, 0, last, out=self.work.last_hidden[:sequences])
        )

    def _layers(self, token_ids: Tensor, attend: Attend) -> Tensor:
        """The normed output of the last layer, [t, hidden]."""
        work, layers, t = self.work, self.weights.layers, len(token_ids)
        epsilon = self.architecture.rms_norm_eps
        residual, normed = work.residual[:t], work.normed[:t]
        self.kernels.embed_norm(
            token_ids, self.weights.embedding, layers[0].input_norm, epsilon, residual, normed
        )
        next_gains = [layer.input_norm for layer in layers[1:]] + [self.weights.norm]
        for number, (layer, next_gain) in enumerate(zip(layers, next_gains, strict=True)):
            delta = self._attention(number, layer, normed, attend)
            self.kernels.add_norm(delta, layer.inner_norm, epsilon, residual, normed)
            delta = self._mlp(layer, normed)
            self.kernels.add_norm(delta, next_gain, epsilon, residual, normed)
        return normed

    def _attention(
        self, number: int, layer: LayerWeights, normed: Tensor, attend: Attend
    ) -> Tensor:
        """What the layer's attention adds to the residual stream, [parts, t, hidden]."""
        work, shape, t = self.work, self.architecture, len(normed)
        keys, values = self.cache.layer(number)
        qkv = self.kernels.product(normed, layer.qkv, work.qkv[:t])
        heads = Heads(
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            bias=layer.qkv_bias,
            q_norm=layer.q_norm,
            k_norm=layer.k_norm,
            epsilon=shape.rms_norm_eps,
        )
        self.kernels.rotate_append(
            qkv,
            heads,
            self.rotary,
            work.positions[:t],
            work.entries[:t],
            keys,
            values,
            work.queries[:t],
        )
        attend(work.queries[:t], keys, values, work.mixed[:t])
        return self.kernels.product(work.mixed[:t], layer.output, work.delta[:t])

    def _mlp(self, layer: LayerWeights, normed: Tensor) -> Tensor:
        """What the layer's MLP, or its experts, add to the residual stream, [parts, t, hidden]."""
        work, kernels, t = self.work, self.kernels, len(normed)
        if layer.router is None:
            kernels.gated_product(normed, layer.gate_up, work.gate_up[:t], work.inner[:t])
            return kernels.product(work.inner[:t], layer.down, work.delta[:t])
        scores = work.experts.scores[:t]
        kernels.vocabulary_product(normed, layer.router, scores)
        kernels.choose_experts(scores, work.entries[:t], work.experts)
        return kernels.expert_products(normed, layer.gate_up, layer.down, work.experts)

    def _logits(self, hidden: Tensor) -> Tensor:
        out = self.work.logits[: len(hidden)]
        self.kernels.vocabulary_product(hidden, self.weights.head, out)
        return out
