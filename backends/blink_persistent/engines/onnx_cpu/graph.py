"""The decoder of a checkpoint as one ONNX graph, for decode steps and prefill chunks alike.

    inputs    token_ids int32 [batch, tokens]         a row's tokens, padded on the right
              start_positions int32 [batch]           KV entries a row has before the step
              lengths int32 [batch]                   KV entries after it; 0: the row is inactive
              past.<layer>.key, .value float32 [batch, kv_heads, capacity, head_dim]
    outputs   logits float32 [batch, vocabulary]      of each row's last token
              present.<layer>.key, .value             as past; bind both to one buffer

A row has `lengths - start_positions` tokens, the rest of its line is padding. With past and
present bound to one buffer only the new entries are written; an inactive row's are left alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto

from blink_persistent.engines.onnx_cpu.checks import refuse_unservable
from blink_persistent.engines.onnx_cpu.metadata import Compute, ModelShape
from blink_persistent.engines.onnx_cpu.nodes import CONTRIB, GraphWriter
from blink_persistent.engines.onnx_cpu.weight_file import WeightFile
from blink_persistent.engines.onnx_cpu.weights import FloatWeights, Int8Weights, Weights
from blink_server.importers.checkpoint import Architecture, Checkpoint

_WEIGHTS: dict[Compute, Callable[[Checkpoint, GraphWriter], Weights]] = {
    "int8": Int8Weights,
    "fp32": FloatWeights,
}


def write_graph(
    checkpoint: Checkpoint,
    path: Path,
    *,
    context_length: int,
    compute: Compute = "int8",
    progress: Callable[[float], None] = lambda fraction: None,
    note: Callable[[str], None] = lambda line: None,
) -> list[str]:
    """Write the graph of a checkpoint; returns the names of the files written, `path`'s first.

    Large weights go to "<name>.data" beside it, one after the other as they are read: memory is
    needed for one layer's at a time. Arguments and errors are those of `build_graph`.
    """
    with WeightFile(path.with_name(f"{path.name}.data")) as weight_file:
        model = build_graph(
            checkpoint,
            context_length=context_length,
            compute=compute,
            weight_file=weight_file,
            progress=progress,
            note=note,
        )
        onnx.save_model(model, path)
        return [path.name, *weight_file.names]


def build_graph(
    checkpoint: Checkpoint,
    *,
    context_length: int,
    compute: Compute = "int8",
    weight_file: WeightFile | None = None,
    progress: Callable[[float], None] = lambda fraction: None,
    note: Callable[[str], None] = lambda line: None,
) -> onnx.ModelProto:
    """The graph of a checkpoint; `progress` goes from above 0 to 1.

    Large weights go to `weight_file`, where there is one, else into the graph.

    `compute` "int8" holds matrices as the checkpoint has them, quantized ones for int8 kernels;
    "fp32" holds all by their values. `note` is told how that was, and how exactly.
    `context_length` is the largest position + 1 that the graph can rotate. Raises `InvalidModel`
    for a checkpoint of another architecture, that lacks a tensor or has one that would be ignored,
    or whose dimensions the kernels cannot work with.
    """
    refuse_unservable(checkpoint, context_length)
    architecture = checkpoint.architecture
    graph = GraphWriter("decoder", weight_file)
    matrices = _WEIGHTS[compute](checkpoint, graph)
    decoder = _Decoder(checkpoint, graph, matrices, context_length)

    residual = decoder.embed()
    update = None
    for layer in range(architecture.layers):
        residual, update = decoder.layer(layer, residual, update)
        progress((layer + 1) / (architecture.layers + 1))
    decoder.head(residual, update)
    progress(1.0)
    note(matrices.summary())
    shape = model_shape(architecture, context_length, compute)
    shape = replace(shape, weight_file_bytes=weight_file.size if weight_file else 0)
    return graph.finish(shape.to_metadata())


def model_shape(
    architecture: Architecture, context_length: int, compute: Compute = "int8"
) -> ModelShape:
    """What the graph of a checkpoint will say of itself."""
    return ModelShape(
        layers=architecture.layers,
        kv_heads=architecture.kv_heads,
        head_dim=architecture.head_dim,
        vocabulary_size=architecture.vocabulary_size,
        context_length=context_length,
        compute=compute,
    )


class _Decoder:
    """Writes the parts of the network, in the order of computation."""

    def __init__(
        self, checkpoint: Checkpoint, graph: GraphWriter, weights: Weights, context_length: int
    ) -> None:
        self._checkpoint = checkpoint
        self._architecture = checkpoint.architecture
        self._graph = graph
        self._weights = weights
        graph.input("token_ids", TensorProto.INT32, ["batch", "tokens"])
        graph.input("start_positions", TensorProto.INT32, ["batch"])
        graph.input("lengths", TensorProto.INT32, ["batch"])
        graph.output("logits", TensorProto.FLOAT, ["batch", self._architecture.vocabulary_size])
        for layer in range(self._architecture.layers):
            self._add_cache(layer)
        self._add_row_sizes()
        self._add_rotary_tables(context_length)

    def _add_cache(self, layer: int) -> None:
        kv_heads, head_dim = self._architecture.kv_heads, self._architecture.head_dim
        shape: list[int | str] = ["batch", kv_heads, "capacity", head_dim]
        for part in ("key", "value"):
            self._graph.input(f"past.{layer}.{part}", TensorProto.FLOAT, shape)
            self._graph.output(f"present.{layer}.{part}", TensorProto.FLOAT, shape)

    def _add_row_sizes(self) -> None:
        """How much of each row is valid, in the forms that the operators ask for."""
        graph = self._graph
        zero, one = (graph.constant(f"int.{n}", np.array(n, np.int32)) for n in (0, 1))
        new_tokens = graph.add("Sub", ["lengths", "start_positions"], "new_tokens")
        self._tokens = graph.add("Max", [new_tokens, zero], "tokens_of_row")
        last_position = graph.add("Sub", ["lengths", one], "last_position")
        self._last_position = graph.add("Max", [last_position, zero], "last_position_of_row")
        shape = graph.add("Shape", ["past.0.key"], "capacity_shape", start=2, end=3)
        axis = graph.constant("axis.0", np.array([0], np.int64))
        capacity = graph.add("Squeeze", [shape, axis], "capacity_scalar")
        self._capacity = graph.add("Cast", [capacity], "capacity", to=TensorProto.INT32)

    def _add_rotary_tables(self, context_length: int) -> None:
        """cos and sin, float32 [context_length, head_dim / 2], for the half-split layout."""
        cos, sin = self._architecture.rotary_tables(context_length)
        self._rotary = [
            self._graph.constant("rotary.cos", cos.astype(np.float32)),
            self._graph.constant("rotary.sin", sin.astype(np.float32)),
        ]

    def embed(self) -> str:
        return self._weights.embed("model.embed_tokens.weight", "token_ids", "embedding")

    def layer(self, layer: int, residual: str, update: str | None) -> tuple[str, str]:
        """One layer, whose input is residual + update; its output is the sum of what it returns.

        All values are float32 [batch, tokens, features]. Additions to the residual are left to
        the next normalization, which does both in one pass.
        """
        graph, weights = self._graph, self._weights
        prefix = f"model.layers.{layer}"
        graph.scope(f"layers.{layer}")

        x, residual = self._normalize(f"{prefix}.input_layernorm.weight", residual, update)
        projections = [f"{prefix}.self_attn.{part}_proj" for part in "qkv"]
        qkv = weights.project([f"{name}.weight" for name in projections], x, "qkv")
        if self._architecture.attention_bias:
            bias = np.concatenate([self._vector(f"{name}.bias") for name in projections])
            bias_name = graph.constant(f"{prefix}.self_attn.qkv_proj.bias", bias)
            qkv = graph.add("Add", [qkv, bias_name], "qkv_with_bias")
        mixed = self._attend(layer, qkv)
        update = weights.project([f"{prefix}.self_attn.o_proj.weight"], mixed, "attention_output")

        norm = f"{prefix}.post_attention_layernorm.weight"
        x, residual = self._normalize(norm, residual, update)
        projections = [f"{prefix}.mlp.{part}_proj.weight" for part in ("gate", "up")]
        gate_up = weights.project(projections, x, "gate_up")
        halves = [f"layers.{layer}/gate", f"layers.{layer}/up"]
        graph.add("Split", [gate_up], "split", outputs=halves, axis=-1, num_outputs=2)
        # With alpha 1, x * sigmoid(alpha * x) is SiLU.
        activated = graph.add("QuickGelu", halves[:1], "silu", domain=CONTRIB, alpha=1.0)
        hidden = graph.add("Mul", [activated, halves[1]], "hidden")
        down = [f"{prefix}.mlp.down_proj.weight"]
        update = weights.project(down, hidden, "mlp_output", spiky=True)
        return residual, update

    def _normalize(self, gain: str, residual: str, update: str | None) -> tuple[str, str]:
        """RMS norm of residual + update; returns (normalized, residual + update)."""
        graph = self._graph
        name = gain.split(".")[-2]
        weight = graph.constant(gain, self._vector(gain))
        epsilon = self._architecture.rms_norm_eps
        if update is None:
            normalized = graph.add(
                "SimplifiedLayerNormalization",
                [residual, weight],
                name,
                axis=-1,
                epsilon=epsilon,
                stash_type=1,
            )
            return normalized, residual
        total = f"{update}+residual"
        normalized = graph.add(
            "SkipSimplifiedLayerNormalization",
            [update, residual, weight],
            name,
            outputs=[f"{update}/{name}", "", "", total],
            domain=CONTRIB,
            epsilon=epsilon,
        )
        return normalized, total

    def _vector(self, name: str) -> npt.NDArray[np.float32]:
        """A tensor of one dimension, which is never quantized."""
        return np.asarray(self._checkpoint.tensor(name), np.float32)

    def _normalize_heads(self, layer: int, qkv: str) -> list[str]:
        """Queries and keys through their own norms, head by head; returns q, k and v."""
        graph, architecture = self._graph, self._architecture
        heads, kv_heads, size = architecture.heads, architecture.kv_heads, architecture.head_dim
        sizes = graph.constant(
            "sizes.qkv", np.array([heads * size, kv_heads * size, kv_heads * size], np.int64)
        )
        names = [f"layers.{layer}/{part}" for part in "qkv"]
        graph.add("Split", [qkv, sizes], "split_qkv", outputs=names, axis=-1)
        flat = graph.constant("shape.flat_heads", np.array([0, 0, -1], np.int64))
        normalized = []
        for part, count in (("q", heads), ("k", kv_heads)):
            shape = graph.constant(f"shape.{part}_heads", np.array([0, 0, count, size], np.int64))
            split = graph.add("Reshape", [f"layers.{layer}/{part}", shape], f"{part}_heads")
            gain = f"model.layers.{layer}.self_attn.{part}_norm.weight"
            normed = graph.add(
                "SimplifiedLayerNormalization",
                [split, graph.constant(gain, self._vector(gain))],
                f"{part}_norm",
                axis=-1,
                epsilon=architecture.rms_norm_eps,
                stash_type=1,
            )
            normalized.append(graph.add("Reshape", [normed, flat], f"{part}_normalized"))
        return [*normalized, names[2]]

    def _attend(self, layer: int, qkv: str) -> str:
        """Rotate q and k, append k and v to the cache, attend. [batch, tokens, heads * head_dim]"""
        architecture = self._architecture
        mixed = f"layers.{layer}/attention"
        cache = ["key", "value"]
        # The operator takes queries, keys and values side by side, or each by itself.
        packed = [qkv, "", ""]
        return self._graph.add(
            "GroupQueryAttention",
            [
                *(self._normalize_heads(layer, qkv) if architecture.qk_norm else packed),
                *(f"past.{layer}.{part}" for part in cache),
                self._last_position,
                self._capacity,
                *self._rotary,
                *([""] * 7),
                self._tokens,
            ],
            "attention",
            outputs=[mixed, *(f"present.{layer}.{part}" for part in cache)],
            domain=CONTRIB,
            num_heads=architecture.heads,
            kv_num_heads=architecture.kv_heads,
            scale=architecture.head_dim**-0.5,
            do_rotary=1,
            rotary_interleaved=0,
        )

    def head(self, residual: str, update: str | None) -> None:
        """The logits of each row's last valid token."""
        graph = self._graph
        graph.scope("")
        x, _ = self._normalize("model.norm.weight", residual, update)
        one = graph.constant("int.1", np.array(1, np.int32))
        zero = graph.constant("int.0", np.array(0, np.int32))
        last = graph.add("Max", [graph.add("Sub", [self._tokens, one], "last"), zero], "last_token")
        column = graph.add(
            "Unsqueeze",
            [last, graph.constant("axis.1", np.array([1], np.int64))],
            "last_token_column",
        )
        index = graph.add("Cast", [column], "last_token_index", to=TensorProto.INT64)
        hidden = graph.add("GatherND", [x, index], "last_hidden", batch_dims=1)
        tied = self._architecture.tied_embeddings
        matrix = "model.embed_tokens.weight" if tied else "lm_head.weight"
        self._weights.project([matrix], hidden, "logits")
