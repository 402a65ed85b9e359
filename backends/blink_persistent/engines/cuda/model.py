"""The decoder as plain functions over preallocated tensors: a step of decode, prefill, or both.

A step reads its inputs from the scheduler's buffers and writes KV entries and logits. It
allocates nothing, asks the device nothing, and its shapes follow from the graph's key alone, so
that with the fused kernels it can be captured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from blink_persistent.engines.cuda.kernels.protocol import Heads, Kernels, Projected, Rotary
from blink_persistent.engines.cuda.step_tensors import KvCache, StepInputs, Workspace
from blink_persistent.engines.cuda.weights import LayerWeights, Weights
from blink_server.importers.checkpoint import Architecture

Mix = Callable[[Projected, Tensor, Tensor], None]
"""Append to one layer's keys and values, and attention: of a step's tokens, or of some of them."""


def rotary_tables(architecture: Architecture, context_length: int, *, device: Any) -> Rotary:
    """cos and sin for every position, computed in float64."""
    cos, sin = (
        torch.from_numpy(table).to(device=device, dtype=torch.float32)
        for table in architecture.rotary_tables(context_length)
    )
    return Rotary(cos, sin)


class StepLayers(Protocol):
    """All layers of a decode step at once, for one model, its cache and workspace."""

    def takes(self, rows: int) -> bool:
        """Can it make a step of so many rows?"""
        ...

    def __call__(self, inputs: StepInputs, rows: int) -> None:
        """Append to the KV, and make the workspace's residual stream, in which the rows' tokens are
        embedded, what it is behind the last layer. The rest of the workspace may be written.
        """
        ...


@dataclass(frozen=True, slots=True)
class Decoder:
    """One model in memory. Its steps run on the current stream; one at a time."""

    architecture: Architecture
    weights: Weights
    rotary: Rotary
    cache: KvCache
    work: Workspace
    kernels: Kernels
    all_layers: StepLayers | None = None  # in place of `kernels`, in decode steps that it takes

    def decode(self, inputs: StepInputs, rows: int) -> Tensor:
        """One token of each row. Logits, float32 [rows, vocabulary], a view of the workspace."""
        if self.all_layers is not None and self.all_layers.takes(rows):
            self._embed(inputs.token_ids[:rows], slice(rows))
            self.all_layers(inputs, rows)
            return self._logits(self._last_norm(rows))
        return self._logits(self._layers(rows, self._begin_rows(inputs, rows, 0)))

    def prefill(self, inputs: StepInputs, sequences: int, tokens: int) -> Tensor:
        """Packed tokens of several prompts, each from its start position on.

        Logits of each sequence's last token, float32 [sequences, vocabulary]; without meaning
        for a sequence that has no tokens.
        """
        mix = self._begin_packed(inputs, sequences, tokens)
        return self._logits(self._last_of(self._layers(tokens, mix), sequences))

    def mixed(
        self, prefill: StepInputs, decode: StepInputs, sequences: int, tokens: int, rows: int
    ) -> Tensor:
        """Both in one: packed tokens, behind them a token of each row; weights are read once.

        Logits, float32 [sequences + rows, vocabulary]: those of `prefill`, then those of `decode`.
        """
        sampled = sequences + rows
        torch.arange(tokens, tokens + rows, out=self.work.last[sequences:sampled])
        packed = self._begin_packed(prefill, sequences, tokens)
        alone = self._begin_rows(decode, rows, tokens)

        def mix(new: Projected, keys: Tensor, values: Tensor) -> None:
            if not self.kernels.appends(new.only(slice(tokens, None))):
                self.kernels.rotate_append(new, keys, values)
                new = replace(new, appended=True)
            packed(new.only(slice(tokens)), keys, values)
            alone(new.only(slice(tokens, None)), keys, values)

        return self._logits(self._last_of(self._layers(tokens + rows, mix), sampled))

    def _begin_rows(self, inputs: StepInputs, rows: int, at: int) -> Mix:
        """Locate and embed the rows' tokens, from token `at` of the step on; their `Mix`."""
        work, here = self.work, slice(at, at + rows)
        lengths, tables = inputs.lengths[:rows], inputs.block_tables[:rows]
        self.kernels.locate_decode(
            inputs.start_positions[:rows],
            lengths,
            tables,
            self.cache.block_size,
            work.positions[here],
            work.entries[here],
        )
        self._embed(inputs.token_ids[:rows], here)

        def mix(new: Projected, keys: Tensor, values: Tensor) -> None:
            self.kernels.attend_new(new, keys, values, lengths, tables, work.mixed[here])

        return mix

    def _begin_packed(self, inputs: StepInputs, sequences: int, tokens: int) -> Mix:
        """The same for packed tokens, which are the first of the step."""
        work = self.work
        starts, ends = inputs.start_positions[:sequences], inputs.cu_seqlens[: sequences + 1]
        tables = inputs.block_tables[:sequences]
        self.kernels.locate_prefill(
            starts,
            ends,
            tables,
            self.cache.block_size,
            work.positions[:tokens],
            work.entries[:tokens],
            work.last[:sequences],
        )
        self._embed(inputs.token_ids[:tokens], slice(0, tokens))

        def mix(new: Projected, keys: Tensor, values: Tensor) -> None:
            if not new.appended:
                self.kernels.rotate_append(new, keys, values)
            out = work.mixed[:tokens]
            self.kernels.prefill_attention(new.queries, keys, values, starts, ends, tables, out)

        return mix

    def _embed(self, token_ids: Tensor, here: slice) -> None:
        gain, epsilon = self.weights.layers[0].input_norm, self.architecture.rms_norm_eps
        residual, normed = self.work.residual[here], self.work.normed[here]
        self.kernels.embed_norm(token_ids, self.weights.embedding, gain, epsilon, residual, normed)

    def _layers(self, t: int, mix: Mix) -> Tensor:
        """The normed output of the last layer, [t, hidden], for tokens that are embedded."""
        work, layers = self.work, self.weights.layers
        epsilon = self.architecture.rms_norm_eps
        residual, normed = work.residual[:t], work.normed[:t]
        next_gains = [layer.input_norm for layer in layers[1:]] + [self.weights.norm]
        for number, (layer, next_gain) in enumerate(zip(layers, next_gains, strict=True)):
            delta = self._attention(number, layer, t, mix)
            if layer.router is None:
                self.kernels.add_norm(delta, layer.inner_norm, epsilon, residual, normed)
                delta = self._mlp(layer, t)
            else:
                self.kernels.route(
                    *(delta, layer.inner_norm, epsilon, residual, normed),
                    *(layer.router, work.entries[:t], work.experts),
                )
                delta = self.kernels.expert_products(
                    normed, layer.gate_up, layer.down, work.experts
                )
            self.kernels.add_norm(delta, next_gain, epsilon, residual, normed)
        return normed

    def _last_norm(self, t: int) -> Tensor:
        """The normed residual stream of t tokens, [t, hidden], with nothing to be added before."""
        work, epsilon = self.work, self.architecture.rms_norm_eps
        residual, normed, nothing = work.residual[:t], work.normed[:t], work.delta[None, :t][:0]
        self.kernels.add_norm(nothing, self.weights.norm, epsilon, residual, normed)
        return normed

    def _attention(self, number: int, layer: LayerWeights, t: int, mix: Mix) -> Tensor:
        """What the layer's attention adds to the residual stream, [parts, t, hidden]."""
        work, shape = self.work, self.architecture
        keys, values = self.cache.layer(number)
        qkv = self.kernels.product(work.normed, layer.qkv, work.qkv, t)
        heads = Heads(
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            bias=layer.qkv_bias,
            q_norm=layer.q_norm,
            k_norm=layer.k_norm,
            epsilon=shape.rms_norm_eps,
        )
        positions, entries, queries = work.positions[:t], work.entries[:t], work.queries[:t]
        mix(Projected(qkv, heads, self.rotary, positions, entries, queries), keys, values)
        return self.kernels.product(work.mixed, layer.output, work.delta, t)

    def _mlp(self, layer: LayerWeights, t: int) -> Tensor:
        """What the layer's MLP adds to the residual stream, [parts, t, hidden]."""
        work, kernels = self.work, self.kernels
        kernels.gated_product(work.normed, layer.gate_up, work.gate_up, work.inner, t)
        return kernels.product(work.inner, layer.down, work.delta, t)

    def _last_of(self, hidden: Tensor, count: int) -> Tensor:
        """The tokens that are sampled, [count, hidden]."""
        out = self.work.last_hidden[:count]
        return torch.index_select(hidden, 0, self.work.last[:count], out=out)

    def _logits(self, hidden: Tensor) -> Tensor:
        out = self.work.logits[: len(hidden)]
        self.kernels.vocabulary_product(hidden, self.weights.head, out)
        return out
