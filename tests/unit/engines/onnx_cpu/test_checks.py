"""Checkpoints that no graph can be built for are refused with every reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blink_persistent.engines.onnx_cpu.checks import LONGEST_CONTEXT, rotary_positions
from blink_persistent.engines.onnx_cpu.graph import build_graph
from blink_server.errors import InvalidModel
from blink_server.testing.memory_checkpoint import random_checkpoint, tiny_architecture


def _problems(checkpoint: Any, context_length: int = 16) -> dict[str, Any]:
    with pytest.raises(InvalidModel) as refusal:
        build_graph(checkpoint, context_length=context_length)
    return {problem.field: problem.value for problem in refusal.value.problems}


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"hidden_size": 80}, "hidden_size", 80),
        ({"intermediate_size": 100}, "intermediate_size", 100),
        ({"head_dim": 24}, "head_dim", 24),
        ({"heads": 1, "kv_heads": 1}, "heads * head_dim", 16),
        ({"kv_heads": 3}, "kv_heads", 3),
        ({"rope_divisors": (1.0, 2.0)}, "rope_divisors", "2 numbers"),
    ],
)
def test_dimensions_that_the_kernels_cannot_take(changes: dict[str, int], field: str, value: int):
    assert _problems(random_checkpoint(tiny_architecture(**changes)))[field] == value


def test_another_family_is_refused_by_its_name_alone():
    checkpoint = random_checkpoint(tiny_architecture(family="mamba"))
    checkpoint.tensors = {"something.else": np.zeros((4, 4), np.float32)}
    assert _problems(checkpoint) == {"family": "mamba"}


def test_experts_are_refused_by_their_family():
    architecture = tiny_architecture(family="qwen3_moe", experts=4, experts_per_token=2)
    assert _problems(random_checkpoint(architecture)) == {"family": "qwen3_moe"}


def test_every_missing_and_every_ignored_tensor_is_named():
    checkpoint = random_checkpoint(tiny_architecture(tied_embeddings=False))
    del checkpoint.tensors["model.layers.1.mlp.up_proj.weight"]
    del checkpoint.tensors["lm_head.weight"]
    checkpoint.tensors["model.layers.0.self_attn.q_proj.bias"] = np.zeros(64, np.float32)
    assert set(_problems(checkpoint)) == {
        "model.layers.1.mlp.up_proj.weight",
        "lm_head.weight",
        "model.layers.0.self_attn.q_proj.bias",
    }


def test_repeated_facts_do_no_harm():
    checkpoint = random_checkpoint(tiny_architecture())
    checkpoint.tensors["lm_head.weight"] = checkpoint.tensors["model.embed_tokens.weight"]
    checkpoint.tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(8, np.float32)
    build_graph(checkpoint, context_length=16)


def test_a_context_beyond_the_longest_of_the_engine_is_refused_before_its_tables_are_made():
    checkpoint = random_checkpoint(tiny_architecture(context_length=2**31 - 1))
    assert _problems(checkpoint, LONGEST_CONTEXT + 1) == {"context_length": LONGEST_CONTEXT + 1}


@pytest.mark.parametrize(
    ("trained", "limit", "positions"),
    [
        (8192, 2048, 8192),
        (131_072, 2048, 131_072),
        (2**31 - 1, 2048, 131_072),
        (2**31 - 1, 200_000, 200_000),
    ],
)
def test_tables_are_for_what_the_model_was_trained_for_within_reason(
    trained: int, limit: int, positions: int
):
    assert rotary_positions(trained, limit) == positions


@pytest.mark.parametrize("context_length", [1, 65])
def test_a_context_must_be_one_the_model_was_trained_for(context_length: int):
    checkpoint = random_checkpoint(tiny_architecture())
    assert _problems(checkpoint, context_length) == {"context_length": context_length}
