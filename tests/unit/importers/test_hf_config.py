"""config.json: what of it becomes the architecture, and what is refused by field and value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blink_server.errors import InvalidModel
from blink_server.importers.hf_config import read_architecture
from blink_server.testing.tiny_huggingface import write_tiny_huggingface

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.0, 1.5, 2, 2, 4],
    "long_factor": [9] * 6,
}


def written(tmp_path: Path, family: str = "llama", **config: Any) -> Path:
    return write_tiny_huggingface(tmp_path / "m", family, config=config).directory


@pytest.mark.parametrize(
    ("family", "config", "message"),
    [
        ("llama", {"model_type": "phi"}, "model_type: is 'phi'; supported are 'llama', 'mist"),
        ("llama", {"model_type": None}, "model_type: is missing; supported are"),
        ("llama", {"model_type": ["llama"]}, "model_type: is ['llama']; supported are"),
        (
            "llama",
            {"architectures": ["LlamaForSequenceClassification"]},
            "architectures: is ['LlamaForSequenceClassification']; supported is ['LlamaForCausal",
        ),
        ("llama", {"hidden_act": "gelu"}, "hidden_act: is 'gelu'; supported is 'silu'"),
        ("llama", {"mlp_bias": True}, "mlp_bias: is True; biases there are not supported"),
        ("llama", {"attention_bias": True}, "attention_bias: is True; must be false in"),
        ("qwen2", {"attention_bias": False}, "attention_bias: is False; must be true in"),
        ("qwen3", {"attention_bias": True}, "attention_bias: is True; must be false in"),
        ("llama", {"rope_interleaved": True}, "rope_interleaved: is True; supported is false"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor: is 0.5; supported"),
        (
            "llama",
            {"quantization_config": {"quant_method": "gptq", "bits": 4}},
            "quantization_config.quant_method: is 'gptq'; import the model's original",
        ),
        ("llama", {"hidden_size": None}, "hidden_size: is missing; must be a positive whole"),
        ("llama", {"hidden_size": 66}, "hidden_size: is 66; must be a multiple of the 4"),
        ("llama", {"hidden_size": True}, "hidden_size: is True; must be a positive whole"),
        ("llama", {"num_hidden_layers": 0}, "num_hidden_layers: is 0; must be a positive"),
        ("llama", {"num_key_value_heads": 3}, "num_key_value_heads: is 3; must divide the 4"),
        ("llama", {"head_dim": 15}, "head_dim: is 15; must be even"),
        ("llama", {"rms_norm_eps": "1e-5"}, "rms_norm_eps: is '1e-5'; must be a positive number"),
        ("llama", {"rms_norm_eps": None}, "rms_norm_eps: is missing; must be a positive number"),
        ("llama", {"rope_theta": -1}, "rope_theta: is -1; must be a positive number"),
        ("llama", {"tie_word_embeddings": 1}, "tie_word_embeddings: is 1; must be true or false"),
        ("llama", {"rope_scaling": [8]}, "rope_scaling: is [8]; must be an object"),
        (
            "llama",
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
            "rope_scaling.rope_type: is 'yarn'; supported are 'default', 'linear', 'llama3'",
        ),
        (
            "llama",
            {"rope_scaling": {"type": "dynamic", "factor": 4.0}},
            "rope_scaling.type: is 'dynamic'; supported are",
        ),
        (
            "llama",
            {"rope_parameters": {"rope_type": "proportional", "rope_theta": 1e4}},
            "rope_parameters.rope_type: is 'proportional'; supported are",
        ),
        (
            "llama",
            {"rope_parameters": {"partial_rotary_factor": 0.5}},
            "rope_parameters.partial_rotary_factor: is 0.5; supported is 1.0",
        ),
        ("phi3", {"partial_rotary_factor": 0.7}, "partial_rotary_factor: is 0.7; must be an even"),
        ("phi3", {"partial_rotary_factor": 2}, "partial_rotary_factor: is 2; must be an even"),
        ("phi3", {"rope_scaling": LONGROPE | {"short_factor": [1]}}, "rope_scaling.short_factor"),
        (
            "phi3",
            {"rope_scaling": LONGROPE, "original_max_position_embeddings": 1},
            "original_max_position_embeddings: is 1; must be 2 or more",
        ),
        (
            "phi3",
            {"rope_scaling": LONGROPE | {"short_factor": [0] * 6}},
            "rope_scaling.short_factor: is [0, 0, 0, 0, 0, 0]; must be a list of positive numbers",
        ),
        ("qwen3_moe", {"decoder_sparse_step": 2}, "decoder_sparse_step: is 2; supported is 1"),
        ("qwen3_moe", {"mlp_only_layers": [0]}, "mlp_only_layers: is [0]; supported is []"),
        ("qwen3_moe", {"norm_topk_prob": None}, "norm_topk_prob: is missing; supported is true"),
        ("qwen3_moe", {"num_experts_per_tok": 7}, "num_experts_per_tok: is 7; must be at most"),
        ("qwen3_moe", {"num_experts": None}, "num_local_experts: is missing; must be a positive"),
        ("llama", {"rope_scaling": {"type": "linear"}}, "rope_scaling.factor: is missing; must"),
        (
            "llama",
            {"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}},
            "rope_scaling.high_freq_factor: is 1.0; must be above low_freq_factor, 1.0",
        ),
        (
            "llama",
            {"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 0.5}},
            "rope_scaling.original_max_position_embeddings: is 0.5; must be a positive whole",
        ),
        ("mistral", {"sliding_window": 0}, "sliding_window: is 0; must be a positive whole"),
        ("qwen3", {"layer_types": ["chunked"]}, "layer_types: is ['chunked']; known are 'full"),
        ("qwen3", {"layer_types": 3}, "layer_types: is 3; known are 'full_attention'"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_field_and_value(
    tmp_path: Path, family: str, config: dict[str, Any], message: str
) -> None:
    directory = written(tmp_path, family, **config)
    with pytest.raises(InvalidModel) as refused:
        read_architecture(directory)
    assert f"{directory / 'config.json'}: {message}" in str(refused.value)


def test_a_document_that_is_no_object_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(InvalidModel, match=r"config\.json: must be an object"):
        read_architecture(tmp_path)


@pytest.mark.parametrize(
    ("family", "config", "context_length"),
    [
        ("mistral", {}, 64),
        ("mistral", {"sliding_window": 40}, 40),
        ("mistral", {"sliding_window": 4096}, 64),
        ("qwen2", {"sliding_window": 40}, 64),
        ("qwen2", {"sliding_window": 40, "use_sliding_window": True}, 40),
        ("qwen3", {"sliding_window": 40, "layer_types": ["full_attention"] * 2}, 64),
        (
            "qwen3",
            {"sliding_window": 40, "layer_types": ["full_attention", "sliding_attention"]},
            40,
        ),
    ],
)
def test_the_context_is_no_longer_than_a_window_that_is_used(
    tmp_path: Path, family: str, config: dict[str, Any], context_length: int
) -> None:
    directory = written(tmp_path, family, **config)
    assert read_architecture(directory).context_length == context_length


def test_defaults_are_those_of_the_family(tmp_path: Path) -> None:
    absent = ("num_key_value_heads", "rope_theta", "head_dim", "tie_word_embeddings")
    directory = written(tmp_path, **dict.fromkeys(absent))
    architecture = read_architecture(directory)
    assert architecture.kv_heads == architecture.heads == 4
    assert (architecture.head_dim, architecture.rope_theta) == (16, 10000.0)
    assert not architecture.tied_embeddings


@pytest.mark.parametrize("nested", [False, True])
def test_rotary_settings_are_read_in_either_spelling(tmp_path: Path, nested: bool) -> None:
    linear = {"rope_type": "linear", "factor": 4.0}
    config: dict[str, Any] = {"rope_theta": 500.0, "rope_scaling": linear}
    if nested:
        config = {"rope_theta": None, "rope_parameters": linear | {"rope_theta": 500.0}}
    architecture = read_architecture(written(tmp_path, **config))
    assert architecture.rope_divisors == (4.0,) * 8
    expected = 500.0 ** (-np.arange(0, 16, 2) / 16) / 4
    assert np.allclose(architecture.rotary_frequencies(), expected, rtol=1e-12)


def test_llama3_scaling_slows_the_slow_pairs_alone(tmp_path: Path) -> None:
    config = {"rope_theta": 500000.0, "head_dim": 128, "rope_scaling": LLAMA3}
    frequencies = read_architecture(written(tmp_path, **config)).rotary_frequencies()
    for pair, frequency in enumerate(frequencies):
        plain = 500000.0 ** (-2 * pair / 128)
        wavelength = 2 * np.pi / plain
        if wavelength < 8192 / 4:
            expected = plain
        elif wavelength > 8192 / 1:
            expected = plain / 8
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            expected = (1 - smooth) * plain / 8 + smooth * plain
        assert frequency == pytest.approx(expected, rel=1e-12)
    plain = 500000.0 ** (-np.arange(0, 128, 2) / 128)
    ratios = np.unique(np.round(plain / frequencies, 6))
    assert ratios[0] == 1
    assert ratios[-1] == 8
    assert len(ratios) > 2  # some lie between


def test_longrope_holds_within_the_original_context(tmp_path: Path) -> None:
    config = {"rope_scaling": LONGROPE, "original_max_position_embeddings": 16}
    architecture = read_architecture(written(tmp_path, "phi3", **config))
    assert (architecture.context_length, architecture.rotary_dim) == (16, 12)
    plain = 10000.0 ** (-np.arange(0, 12, 2) / 12)
    expected = np.append(plain / [1.0, 1.0, 1.5, 2, 2, 4], [0, 0])
    assert np.allclose(architecture.rotary_frequencies(), expected, rtol=1e-12)
    magnitude = np.sqrt(1 + np.log(64 / 16) / np.log(16))
    cos, sin = architecture.rotary_tables(3)
    assert np.allclose(cos[2, :6], magnitude * np.cos(2 * expected[:6]), rtol=1e-12)
    assert np.allclose(sin[2, :6], magnitude * np.sin(2 * expected[:6]), rtol=1e-12)
    assert (cos[:, 6:] == 1).all()
    assert (sin[:, 6:] == 0).all()


def test_longrope_takes_the_magnitude_that_is_given(tmp_path: Path) -> None:
    given = {"rope_scaling": LONGROPE | {"attention_factor": 1.25}}
    assert read_architecture(written(tmp_path / "a", "phi3", **given)).rope_magnitude == 1.25
    short = {"rope_scaling": LONGROPE}  # trained for the context that it has
    assert read_architecture(written(tmp_path / "b", "phi3", **short)).rope_magnitude == 1.0


def test_experts_are_counted_in_either_spelling(tmp_path: Path) -> None:
    config = {"num_experts": None, "num_local_experts": 6}
    for directory in (
        written(tmp_path / "a", "qwen3_moe"),
        written(tmp_path / "b", "qwen3_moe", **config),
    ):
        architecture = read_architecture(directory)
        assert (architecture.family, architecture.experts) == ("qwen3_moe", 6)
        assert (architecture.intermediate_size, architecture.experts_per_token) == (96, 2)


def test_null_counts_as_absent(tmp_path: Path) -> None:
    directory = written(tmp_path)
    path = directory / "config.json"
    nulls = {"head_dim": None, "rope_scaling": None, "quantization_config": None}
    path.write_text(json.dumps(json.loads(path.read_text()) | nulls))
    assert read_architecture(directory).head_dim == 16
