"""The Llama decoder in plain numpy, also with experts: what the engines are compared with.

It does each thing where the paper says it and nothing for speed: no cache, no fusion, the whole
sequence at once, in the precision of its weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from blink_server.importers.checkpoint import Architecture

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Forward:
    """Everything an engine must agree on after a sequence of `tokens` tokens.

    logits [tokens, vocabulary]; keys (rotated), values [layers, tokens, kv_heads, head_dim].
    """

    logits: Array
    keys: Array
    values: Array


def forward(
    architecture: Architecture, weights: Mapping[str, Array], token_ids: Sequence[int]
) -> Forward:
    """One sequence through the model, from position 0. `weights` by their checkpoint names."""
    x = weights["model.embed_tokens.weight"][list(token_ids)]
    keys, values = [], []
    for layer in range(architecture.layers):
        w = {
            name.removeprefix(f"model.layers.{layer}."): tensor
            for name, tensor in weights.items()
            if name.startswith(f"model.layers.{layer}.")
        }
        normed = _rms_norm(x, w["input_layernorm.weight"], architecture.rms_norm_eps)
        q, k, v = (_project(normed, w, part, architecture.head_dim) for part in "qkv")
        if architecture.qk_norm:
            q = _rms_norm(q, w["self_attn.q_norm.weight"], architecture.rms_norm_eps)
            k = _rms_norm(k, w["self_attn.k_norm.weight"], architecture.rms_norm_eps)
        q, k = _rotate(q, architecture), _rotate(k, architecture)
        x = x + _attend(q, k, v) @ w["self_attn.o_proj.weight"].T
        normed = _rms_norm(x, w["post_attention_layernorm.weight"], architecture.rms_norm_eps)
        x = x + (_mix_experts if architecture.experts else _mlp)(normed, w, architecture)
        keys.append(k)
        values.append(v)
    x = _rms_norm(x, weights["model.norm.weight"], architecture.rms_norm_eps)
    head = "model.embed_tokens.weight" if architecture.tied_embeddings else "lm_head.weight"
    return Forward(x @ weights[head].T, np.stack(keys), np.stack(values))


def _rms_norm(x: Array, gain: Array, epsilon: float) -> Array:
    mean_square = np.mean(x * x, axis=-1, keepdims=True)
    return np.asarray(x / np.sqrt(mean_square + epsilon) * gain)


def _project(x: Array, layer: Mapping[str, Array], part: str, head_dim: int) -> Array:
    """Queries, keys or values, with their bias where there is one: [tokens, heads, head_dim]."""
    projected = x @ layer[f"self_attn.{part}_proj.weight"].T
    projected = projected + layer.get(f"self_attn.{part}_proj.bias", 0)
    return np.asarray(projected).reshape(len(x), -1, head_dim)


def _rotate(x: Array, architecture: Architecture) -> Array:
    """Rotary embedding, half-split: element i turns with element i + head_dim / 2, if it does."""
    tokens, _, size = x.shape
    turning = architecture.rotary_dim or size
    frequency = architecture.rope_theta ** (-np.arange(0, turning, 2) / turning)
    if architecture.rope_divisors:
        frequency = frequency / np.array(architecture.rope_divisors)
    angle = np.outer(np.arange(tokens), frequency)
    scale = architecture.rope_magnitude
    cos, sin = (scale * f(angle).astype(x.dtype)[:, None] for f in (np.cos, np.sin))
    pairs = turning // 2
    first, second = x[..., :pairs], x[..., size // 2 : size // 2 + pairs]
    turned = x.copy()
    turned[..., :pairs] = first * cos - second * sin
    turned[..., size // 2 : size // 2 + pairs] = second * cos + first * sin
    return turned


def _mlp(
    x: Array, layer: Mapping[str, Array], architecture: Architecture, mlp: str = "mlp"
) -> Array:
    gate = x @ layer[f"{mlp}.gate_proj.weight"].T
    up = x @ layer[f"{mlp}.up_proj.weight"].T
    return np.asarray((gate / (1 + np.exp(-gate)) * up) @ layer[f"{mlp}.down_proj.weight"].T)


def _mix_experts(x: Array, layer: Mapping[str, Array], architecture: Architecture) -> Array:
    """Each token's best experts, weighted by the softmax over all scores, made to add up to 1."""
    scores = x @ layer["mlp.gate.weight"].T
    likely = np.exp(scores - scores.max(axis=-1, keepdims=True))
    likely /= likely.sum(axis=-1, keepdims=True)
    mixed = np.zeros_like(x)
    for token, row in enumerate(likely):
        best = np.argsort(-row, kind="stable")[: architecture.experts_per_token]
        for expert in best:
            one = _mlp(x[token : token + 1], layer, architecture, f"mlp.experts.{expert}")
            mixed[token] += row[expert] / row[best].sum() * one[0]
    return mixed


def _attend(q: Array, k: Array, v: Array) -> Array:
    """Causal attention; each key head serves a group of query heads. [tokens, heads * head_dim]."""
    tokens, heads, size = q.shape
    group = heads // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(size).astype(q.dtype)
    scores = np.where(np.tri(tokens, dtype=bool), scores, -np.inf)
    weight = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weight /= weight.sum(axis=-1, keepdims=True)
    mixed: Array = np.einsum("hqk,khd->qhd", weight, v)
    return mixed.reshape(tokens, heads * size)
