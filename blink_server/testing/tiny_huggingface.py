"""Tiny random models as Hugging Face directories: every file that a real one has.

For tests of what reads such directories: no network, the same values for the same seed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from blink_server.importers.checkpoint import Architecture
from blink_server.importers.fused_tensors import head_order
from blink_server.testing.memory_checkpoint import random_checkpoint
from blink_server.testing.tiny_tokenizer import CHAT_TEMPLATE, IM_END, byte_level_tokenizer

Array = npt.NDArray[Any]

DTYPES: Mapping[str, npt.DTypeLike] = {
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
}
VOCABULARY_SIZE = 512  # more than the tokenizer has, as models often do

_FAMILY_FIELDS: Mapping[str, Mapping[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"], "attention_bias": False, "mlp_bias": False},
    "mistral": {"architectures": ["MistralForCausalLM"], "sliding_window": None},
    "qwen2": {
        "architectures": ["Qwen2ForCausalLM"],
        "use_sliding_window": False,
        "sliding_window": 32768,
        "max_window_layers": 2,
    },
    "qwen3": {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "head_dim": 32,
        "use_sliding_window": False,
        "sliding_window": None,
    },
    "qwen3_moe": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "attention_bias": False,
        "head_dim": 32,
        "use_sliding_window": False,
        "sliding_window": None,
        "intermediate_size": 160,  # of layers without experts: there are none
        "moe_intermediate_size": 96,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    "phi3": {
        "architectures": ["Phi3ForCausalLM"],
        "attention_bias": False,
        "partial_rotary_factor": 0.75,
        "sliding_window": None,
        "original_max_position_embeddings": 64,
        "pad_token_id": 0,
    },
}


@dataclass(frozen=True, slots=True)
class TinyHuggingFace:
    """What was written: `architecture` and `weights`, float32, are what a reader must find."""

    directory: Path
    architecture: Architecture
    weights: dict[str, npt.NDArray[np.float32]]


def write_tiny_huggingface(
    directory: Path,
    model_type: str = "llama",
    *,
    dtype: str = "F32",
    tied: bool = True,
    shards: int = 1,
    seed: int = 0,
    config: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Array | None] | None = None,
    files: Mapping[str, Any] | None = None,
) -> TinyHuggingFace:
    """Write a model of a `model_type` of `hf_config.FAMILIES` to a new directory.

    `shards` above 1 spreads the tensors over files with an index. `config` and `tensors` replace
    entries of config.json and of the weights, add new ones or, where None, leave them out;
    `files` does so with whole files, given as text or as a JSON document.
    """
    architecture = _architecture(model_type, tied)
    random = random_checkpoint(architecture, seed=seed).dequantized()
    stored: dict[str, Array] = {
        name: values.astype(DTYPES[dtype]) for name, values in random.items()
    }
    weights = {name: values.astype(np.float32) for name, values in stored.items()}
    if model_type == "phi3":
        stored = _fused(architecture, stored)
    for name, replacement in (tensors or {}).items():
        stored.pop(name, None)
        if replacement is not None:
            stored[name] = replacement
    directory.mkdir(parents=True)
    _write_tensors(directory, stored, shards)
    fields = _config(model_type, architecture) | dict(config or {})
    documents: dict[str, Any] = {
        "config.json": {name: value for name, value in fields.items() if value is not None},
        "generation_config.json": {"eos_token_id": [IM_END]},
        "tokenizer.json": byte_level_tokenizer(),
        "tokenizer_config.json": {"eos_token": "<|im_end|>", "chat_template": CHAT_TEMPLATE},
    }
    for name, document in (documents | dict(files or {})).items():
        if document is not None:
            text = document if isinstance(document, str) else json.dumps(document)
            (directory / name).write_text(text, encoding="utf-8")
    return TinyHuggingFace(directory, architecture, weights)


def _fused(architecture: Architecture, weights: Mapping[str, Array]) -> dict[str, Array]:
    """Projections with one input as one tensor, the elements of a head that turn first."""
    fused = dict(weights)
    for layer in range(architecture.layers):
        prefix = f"model.layers.{layer}"
        q, k, v = (fused.pop(f"{prefix}.self_attn.{part}_proj.weight") for part in "qkv")
        for rows in (q, k):
            rows[head_order(architecture, len(rows))] = rows.copy()
        gate_up = [fused.pop(f"{prefix}.mlp.{part}_proj.weight") for part in ("gate", "up")]
        fused[f"{prefix}.self_attn.qkv_proj.weight"] = np.concatenate([q, k, v])
        fused[f"{prefix}.mlp.gate_up_proj.weight"] = np.concatenate(gate_up)
    return fused


def _architecture(model_type: str, tied: bool) -> Architecture:
    fields = _FAMILY_FIELDS[model_type]
    return Architecture(
        family="qwen3_moe" if model_type == "qwen3_moe" else "llama",
        layers=2,
        hidden_size=64,
        intermediate_size=96,
        heads=4,
        kv_heads=2,
        head_dim=fields.get("head_dim", 16),
        vocabulary_size=VOCABULARY_SIZE,
        context_length=64,
        rope_theta=10000.0,
        rms_norm_eps=1e-5,
        tied_embeddings=tied,
        attention_bias=model_type == "qwen2",
        qk_norm=model_type.startswith("qwen3"),
        rotary_dim=12 if model_type == "phi3" else 0,
        experts=fields.get("num_experts", 0),
        experts_per_token=fields.get("num_experts_per_tok", 0),
    )


def _config(model_type: str, architecture: Architecture) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "hidden_act": "silu",
        "num_hidden_layers": architecture.layers,
        "hidden_size": architecture.hidden_size,
        "intermediate_size": architecture.intermediate_size,
        "num_attention_heads": architecture.heads,
        "num_key_value_heads": architecture.kv_heads,
        "vocab_size": architecture.vocabulary_size,
        "max_position_embeddings": architecture.context_length,
        "rope_theta": architecture.rope_theta,
        "rms_norm_eps": architecture.rms_norm_eps,
        "tie_word_embeddings": architecture.tied_embeddings,
        **_FAMILY_FIELDS[model_type],
    }


def _write_tensors(directory: Path, tensors: Mapping[str, Array], shards: int) -> None:
    if shards == 1:
        save_file(dict(tensors), directory / "model.safetensors")
        return
    places: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in list(tensors)[shard::shards]}
        save_file(part, directory / file)
        places |= dict.fromkeys(part, file)
    size = sum(values.nbytes for values in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": places}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
