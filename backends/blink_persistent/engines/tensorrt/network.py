"""A decoder as one TensorRT network, for every key of the graph grid.

The module is passed in: `tensorrt` (10.15 or later), or `tensorrt_rtx`. One network serves both
phases, so that a plan holds the weights once; they differ in the shapes that are set.

    inputs    token_ids int32 [tokens]               decode: a row's; prefill: packed
              start_positions, lengths int32 [n]     KV entries before and after the step
              cu_seqlens int32 [n + 1]               decode: 0, 1, 2 ...
              block_tables int32 [n, max_blocks]
              kv.<layer>.keys, kv.<layer>.values     [blocks, kv_heads, block_size, head_dim]
    outputs   logits float32 [n, vocabulary]         of each row's or sequence's last token
              kv.<layer>.keys.out, .values.out       alias the inputs: bind the same addresses

The pools are those of the engine `cuda`'s `KvCache`, the other inputs the scheduler's step buffers
as they are (`PhaseBuffers` in provisioned.h), but for a decode step's cu_seqlens, a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from blink_persistent.engines.tensorrt.attention import PagedAttention
from blink_persistent.engines.tensorrt.experts import Experts
from blink_persistent.engines.tensorrt.layers import Layers
from blink_persistent.engines.tensorrt.locate import last_tokens, locate
from blink_persistent.engines.tensorrt.rotary import Rotary
from blink_persistent.engines.tensorrt.trt_types import Builder, DataType, Network, Tensor, Trt
from blink_persistent.engines.tensorrt.weights import NetworkWeights
from blink_server.importers.checkpoint import Architecture


@dataclass(frozen=True, slots=True)
class Pages:
    """How KV memory is cut: entries of a block, and blocks that a block table has room for."""

    block_size: int
    max_blocks: int


@dataclass(frozen=True, slots=True)
class DecoderNetwork:
    """A network, and the memory that its constants point to: keep it until a plan was built."""

    network: Network
    held: Sequence[npt.NDArray[Any]]


def pool_names(layer: int) -> tuple[str, str]:
    """The inputs of a layer's keys and values; the outputs' names end on ".out"."""
    return f"kv.{layer}.keys", f"kv.{layer}.values"


def build_network(
    trt: Trt,
    builder: Builder,
    architecture: Architecture,
    weights: NetworkWeights,
    pages: Pages,
    attention: Callable[[Layers], PagedAttention],
    *,
    native_experts: bool = False,
) -> DecoderNetwork:
    """The network of a model, to be built by `builder` of the module `trt`.

    `attention` makes the attention of the network that it is given. `native_experts`: experts by
    TensorRT's own layer, which it runs on some GPUs only (`Experts`), instead of by primitives.
    Raises EngineFailure where the module refuses a layer; the builder's logger was told why.
    """
    flags = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    layers = Layers(trt, builder.create_network(flags))
    layers.network.name = "decoder"
    decoder = _Decoder(layers, architecture, weights, pages, attention(layers))
    decoder.add(Experts(layers, architecture, weights, native=native_experts))
    return DecoderNetwork(layers.network, layers.held)


class _Decoder:
    """Adds the parts of the network, in the order of computation."""

    def __init__(
        self,
        layers: Layers,
        architecture: Architecture,
        weights: NetworkWeights,
        pages: Pages,
        attention: PagedAttention,
    ) -> None:
        self._layers = layers
        self._architecture = architecture
        self._weights = weights
        self._capacity = pages.block_size * pages.max_blocks
        self._attention = attention
        self._float = layers.trt.DataType.FLOAT
        self._type = layers.type_of(weights.dtype)
        self._inputs = {
            "token_ids": self._input("token_ids", "tokens"),
            "start_positions": self._input("start_positions", "n"),
            "lengths": self._input("lengths", "n"),
            "cu_seqlens": self._input("cu_seqlens", "n + 1"),
            "block_tables": self._input("block_tables", "n", pages.max_blocks),
        }
        pool = (architecture.kv_heads, pages.block_size, architecture.head_dim)
        self._pools = [
            [self._input(name, "blocks", *pool, dtype=self._type) for name in pool_names(layer)]
            for layer in range(architecture.layers)
        ]

    def _input(self, name: str, first: str, *rest: int, dtype: DataType | None = None) -> Tensor:
        """An input, int32 unless said; its first size is dynamic, and equal where it is `first`."""
        kind = dtype or self._layers.trt.DataType.INT32
        tensor = self._layers.network.add_input(name, kind, (-1, *rest))
        tensor.set_dimension_name(0, first)
        return tensor

    def add(self, experts: Experts) -> None:
        """All layers, and the outputs."""
        layers, inputs = self._layers, self._inputs
        with layers.scope("step"):
            located = locate(
                layers,
                inputs["token_ids"],
                inputs["start_positions"],
                inputs["lengths"],
                inputs["cu_seqlens"],
            )
            rotary = Rotary(layers, self._architecture, self._capacity, located.positions)
            table = self._matrix("model.embed_tokens.weight")
            if self._architecture.tied_embeddings:  # one table, as wide as the head wants it
                table = layers.cast(table, self._float, "table")
            embedded = layers.gather(table, inputs["token_ids"], "embedded")
            residual = layers.cast(embedded, self._float, "residual")
        for layer in range(self._architecture.layers):
            with layers.scope(f"layers.{layer}"):
                residual = self._attend(layer, residual, rotary)
                residual = self._mlp(layer, residual, experts)
        with layers.scope("head"):
            self._head(residual, table)

    def _matrix(self, *names: str) -> Tensor:
        """Weights [out_features, in_features] below each other."""
        return self._layers.constant(names[0], self._weights.stacked(*names))

    def _normed(self, residual: Tensor, gain: str, name: str) -> Tensor:
        """RMS norm of the residual stream, in the weights' type."""
        layers = self._layers
        normed = layers.rms_norm(
            residual, self._weights[gain], self._architecture.rms_norm_eps, name
        )
        return layers.cast(normed, self._type, f"{name}/rounded")

    def _add(self, residual: Tensor, delta: Tensor, name: str) -> Tensor:
        """The residual stream after a layer's part was added to it."""
        delta = self._layers.cast(delta, self._float, f"{name}/delta")
        return self._layers.elementwise(residual, delta, "SUM", name)

    def _attend(self, layer: int, residual: Tensor, rotary: Rotary) -> Tensor:
        layers, architecture = self._layers, self._architecture
        prefix, name = f"model.layers.{layer}", "attention"
        x = self._normed(residual, f"{prefix}.input_layernorm.weight", "input_norm")
        q, k, v = self._heads(prefix, x)
        q = layers.cast(rotary.turn(q, "q/turned"), self._type, "q/rounded")
        k = layers.cast(rotary.turn(k, "k/turned"), self._type, "k/rounded")
        v = layers.cast(v, self._type, "v/rounded")
        k_pool, v_pool = self._pools[layer]
        attended = self._attention.paged_attention(
            q,
            k,
            v,
            k_pool,
            v_pool,
            self._inputs["block_tables"],
            self._inputs["lengths"],
            self._inputs["start_positions"],
            cu_seqlens=self._inputs["cu_seqlens"],
            name=name,
        )
        for pool, output in zip(pool_names(layer), (attended.k_pool, attended.v_pool), strict=True):
            self._output(output, f"{pool}.out")
        width = architecture.heads * architecture.head_dim
        mixed = layers.reshape(attended.mixed, (-1, width), f"{name}/joined")
        weight = self._matrix(f"{prefix}.self_attn.o_proj.weight")
        delta = layers.matmul(mixed, weight, f"{name}/output", transposed=True)
        return self._add(residual, delta, "attended")

    def _heads(self, prefix: str, x: Tensor) -> list[Tensor]:
        """Queries, keys and values before rotation, float32 [tokens, heads, head_dim] each."""
        layers, architecture = self._layers, self._architecture
        projections = [f"{prefix}.self_attn.{part}_proj" for part in "qkv"]
        weight = self._matrix(*(f"{name}.weight" for name in projections))
        qkv = layers.matmul(x, weight, "qkv", transposed=True)
        qkv = layers.cast(qkv, self._float, "qkv/float")
        if architecture.attention_bias:
            bias = self._weights.stacked(*(f"{name}.bias" for name in projections))
            row = layers.constant("qkv/bias", bias.astype(np.float32)[None])
            qkv = layers.elementwise(qkv, row, "SUM", "qkv/biased")
        counts = (architecture.heads, architecture.kv_heads, architecture.kv_heads)
        qkv = layers.reshape(qkv, (-1, sum(counts), architecture.head_dim), "qkv/heads")
        parts = layers.split(qkv, counts, "qkv/split")
        if architecture.qk_norm:
            for i, part in enumerate("qk"):
                gain = self._weights[f"{prefix}.self_attn.{part}_norm.weight"]
                epsilon = architecture.rms_norm_eps
                parts[i] = layers.rms_norm(parts[i], gain, epsilon, f"{part}/norm")
        return parts

    def _mlp(self, layer: int, residual: Tensor, experts: Experts) -> Tensor:
        prefix = f"model.layers.{layer}"
        x = self._normed(residual, f"{prefix}.post_attention_layernorm.weight", "inner_norm")
        if self._architecture.experts:
            return self._add(residual, experts.mix(prefix, x), "mixed")
        layers = self._layers
        pair = self._matrix(f"{prefix}.mlp.gate_proj.weight", f"{prefix}.mlp.up_proj.weight")
        gate_up = layers.matmul(x, pair, "gate_up", transposed=True)
        size = self._architecture.intermediate_size
        inner = layers.swiglu(gate_up, size, self._type, "inner")
        weight = self._matrix(f"{prefix}.mlp.down_proj.weight")
        return self._add(residual, layers.matmul(inner, weight, "down", transposed=True), "out")

    def _head(self, residual: Tensor, table: Tensor) -> None:
        """Logits of the last tokens. Products of float32: rounded logits would make ties."""
        layers = self._layers
        last = last_tokens(layers, self._inputs["start_positions"], self._inputs["cu_seqlens"])
        x = self._normed(layers.gather(residual, last, "rows"), "model.norm.weight", "norm")
        weight = table if self._architecture.tied_embeddings else self._matrix("lm_head.weight")
        logits = layers.matmul(
            layers.cast(x, self._float, "x"),
            layers.cast(weight, self._float, "weight"),
            "logits",
            transposed=True,
        )
        self._output(logits, "logits")

    def _output(self, tensor: Tensor, name: str) -> None:
        tensor.name = name
        self._layers.network.mark_output(tensor)
