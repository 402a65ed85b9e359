"""A model's weights as a step reads them: projections with one input lie in one matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from blink_server.importers.checkpoint import Architecture


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer. Matrices are [out_features, in_features], contiguous.

    `qkv` is queries, keys, values below each other; `gate_up` the gate's rows, then the up rows.
    With experts these are one of each expert, [experts, out_features, in_features].
    """

    input_norm: Tensor  # [hidden]
    qkv: Tensor  # [(heads + 2 * kv_heads) * head_dim, hidden]
    qkv_bias: Tensor | None  # [(heads + 2 * kv_heads) * head_dim]
    q_norm: Tensor | None  # [head_dim]
    k_norm: Tensor | None  # [head_dim]
    output: Tensor  # [hidden, heads * head_dim]
    inner_norm: Tensor  # [hidden]
    gate_up: Tensor  # [2 * intermediate, hidden]
    down: Tensor  # [hidden, intermediate]
    router: Tensor | None = None  # [experts, hidden]


@dataclass(frozen=True, slots=True)
class Weights:
    """A whole model, of one dtype, on one device. With tied embeddings `head` is `embedding`."""

    embedding: Tensor  # [vocabulary, hidden]
    layers: tuple[LayerWeights, ...]
    norm: Tensor  # [hidden]
    head: Tensor  # [vocabulary, hidden]

    def nbytes(self) -> int:
        """Bytes of memory, a tied head counted once."""
        return sum({tensor.data_ptr(): tensor.nbytes for tensor in self._tensors()}.values())

    def _tensors(self) -> Iterator[Tensor]:
        yield from (self.embedding, self.norm, self.head)
        for layer in self.layers:
            parts = (getattr(layer, name) for name in LayerWeights.__slots__)
            yield from (part for part in parts if part is not None)


Fill = Callable[[str, Tensor], None]
"""Writes the tensor of a canonical checkpoint name to a part of a weight, of the same shape."""


def fill_weights(
    architecture: Architecture, fill: Fill, *, device: Any, dtype: torch.dtype
) -> Weights:
    """Allocate every weight and have `fill` write it, one checkpoint tensor at a time."""
    shapes = architecture.tensor_shapes()

    def stacked(*names: str) -> Tensor:
        rows = sum(shapes[name][0] for name in names)
        whole = torch.empty((rows, *shapes[names[0]][1:]), dtype=dtype, device=device)
        for name, part in zip(names, whole.split([shapes[name][0] for name in names]), strict=True):
            fill(name, part)
        return whole

    def layer(number: int) -> LayerWeights:
        def at(*names: str) -> Tensor:
            return stacked(*(f"model.layers.{number}.{name}" for name in names))

        def of_mlps(*parts: str) -> Tensor:
            mlps = architecture.mlp_names()
            whole = at(*(f"{mlp}.{part}_proj.weight" for mlp in mlps for part in parts))
            return whole.unflatten(0, (len(mlps), -1)) if architecture.experts else whole

        bias, norms = architecture.attention_bias, architecture.qk_norm
        return LayerWeights(
            input_norm=at("input_layernorm.weight"),
            qkv=at(*(f"self_attn.{part}_proj.weight" for part in "qkv")),
            qkv_bias=at(*(f"self_attn.{part}_proj.bias" for part in "qkv")) if bias else None,
            q_norm=at("self_attn.q_norm.weight") if norms else None,
            k_norm=at("self_attn.k_norm.weight") if norms else None,
            output=at("self_attn.o_proj.weight"),
            inner_norm=at("post_attention_layernorm.weight"),
            gate_up=of_mlps("gate", "up"),
            down=of_mlps("down"),
            router=at("mlp.gate.weight") if architecture.experts else None,
        )

    embedding = stacked("model.embed_tokens.weight")
    layers = tuple(layer(number) for number in range(architecture.layers))
    tied = architecture.tied_embeddings
    return Weights(
        embedding=embedding,
        layers=layers,
        norm=stacked("model.norm.weight"),
        head=embedding if tied else stacked("lm_head.weight"),
    )


def random_weights(
    architecture: Architecture, *, device: Any, dtype: torch.dtype, seed: int = 0
) -> Weights:
    """Weights of variance 1 / in_features, gains of 1, biases of 0, made on the device."""
    generator = torch.Generator(device=device).manual_seed(seed)

    def fill(name: str, part: Tensor) -> None:
        if part.dim() == 1:
            part.fill_(0.0 if name.endswith(".bias") else 1.0)
        else:
            part.normal_(0.0, part.shape[1] ** -0.5, generator=generator)

    return fill_weights(architecture, fill, device=device, dtype=dtype)


def read_weights(
    path: Path, architecture: Architecture, *, device: Any, progress: Callable[[float], None]
) -> Weights:
    """The bfloat16 weights of a file that `read_stored_architecture` has checked."""
    count = len(architecture.tensor_shapes())
    done = 0
    with safe_open(path, framework="pt", device="cpu") as file:

        def fill(name: str, part: Tensor) -> None:
            nonlocal done
            part.copy_(file.get_tensor(name))
            done += 1
            progress(done / count)

        return fill_weights(architecture, fill, device=device, dtype=torch.bfloat16)
