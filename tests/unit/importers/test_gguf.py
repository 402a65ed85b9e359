"""The GGUF reader: exact values, canonical layout, and an error that names what is wrong."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blink_server.errors import InvalidModel
from blink_server.importers.checkpoint import QuantizedTensor
from blink_server.importers.gguf import open_gguf
from blink_server.testing.tiny_gguf import CHAT_TEMPLATE, TinyShape, write_tiny_gguf

Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


def refusal(path: Path) -> str:
    with pytest.raises(InvalidModel) as refused:
        open_gguf(path)
    assert all(problem.file == path for problem in refused.value.problems)
    return str(refused.value)


K_SHAPE = TinyShape(hidden_size=256, intermediate_size=512, layers=1)
SUPPORTED = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q6_K"]


@pytest.mark.parametrize("matrices", SUPPORTED)
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_every_tensor_has_the_values_and_layout_of_the_original(
    tmp_path: Path, matrices: str, architecture: str
) -> None:
    model = write_tiny_gguf(
        tmp_path / "m.gguf",
        architecture=architecture,
        matrices=matrices,
        embeddings="Q6_K" if matrices.endswith("_K") else "Q8_0",
        shape=K_SHAPE if matrices.endswith("_K") else None,
        tied=architecture != "qwen2",
    )
    checkpoint = open_gguf(model.path)

    assert checkpoint.architecture.tied_embeddings is (architecture != "qwen2")
    assert checkpoint.architecture.attention_bias is (architecture == "qwen2")
    assert checkpoint.architecture.qk_norm is (architecture == "qwen3")
    shapes = {name: values.shape for name, values in model.weights.items()}
    assert checkpoint.architecture.tensor_shapes() == shapes
    assert set(checkpoint.tensor_names()) == set(model.weights)
    for name, expected in model.weights.items():
        tensor = checkpoint.tensor(name)
        quantized = matrices.startswith("Q") and expected.ndim == 2
        assert isinstance(tensor, QuantizedTensor) or not quantized
        values = tensor.dequantize() if isinstance(tensor, QuantizedTensor) else tensor
        assert values.dtype == np.float32
        assert np.array_equal(values, expected), name


def test_another_architectures_biases_are_not_ignored(tmp_path: Path) -> None:
    bias = {"blk.0.attn_output.bias": np.zeros(64, np.float32)}
    write_tiny_gguf(tmp_path / "m.gguf", architecture="qwen2", tensors=bias)
    assert "attn_output.bias: is no tensor of this architecture" in refusal(tmp_path / "m.gguf")
    write_tiny_gguf(tmp_path / "m.gguf", architecture="qwen2", tensors={"blk.1.attn_k.bias": None})
    assert "blk.1.attn_k.bias: is missing" in refusal(tmp_path / "m.gguf")


def test_rotary_rows_of_a_head_come_in_half_split_order(tmp_path: Path) -> None:
    shape = TinyShape()
    interleaved = np.zeros((shape.hidden_size, shape.hidden_size), np.float32)
    interleaved[:, 0] = np.arange(shape.hidden_size)
    path = tmp_path / "m.gguf"
    write_tiny_gguf(path, tensors={"blk.1.attn_q.weight": interleaved})

    tensor = open_gguf(path).tensor(Q_PROJ)
    assert isinstance(tensor, np.ndarray)
    head = tensor[:16, 0].astype(int).tolist()
    assert head == [0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15]
    assert tensor[16:32, 0].astype(int).tolist() == [16 + row for row in head]


def test_architecture_and_provenance_come_from_the_file(tmp_path: Path) -> None:
    stages: list[tuple[str, float]] = []
    model = write_tiny_gguf(tmp_path / "m.gguf")
    checkpoint = open_gguf(
        model.path, progress=lambda stage, fraction: stages.append((stage, fraction))
    )

    architecture = checkpoint.architecture
    assert (architecture.family, architecture.layers) == ("llama", 2)
    assert (architecture.heads, architecture.kv_heads, architecture.head_dim) == (4, 2, 16)
    assert (architecture.hidden_size, architecture.intermediate_size) == (64, 128)
    assert architecture.vocabulary_size == len(model.tokens)
    assert architecture.rms_norm_eps == np.float32(1e-5)
    assert (checkpoint.eos_token_ids, checkpoint.bos_token_id) == ((2,), None)
    assert checkpoint.chat_template == CHAT_TEMPLATE
    assert checkpoint.source == {
        "format": "gguf",
        "file": "m.gguf",
        "sha256": hashlib.sha256(model.path.read_bytes()).hexdigest(),
    }
    assert ("hash", 1.0) in stages
    assert ("tokenizer", 1.0) in stages


def test_end_of_turn_ends_an_answer_too(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_tiny_gguf(
        path, metadata={"tokenizer.ggml.eot_token_id": 0, "tokenizer.ggml.eom_token_id": 2}
    )
    assert open_gguf(path).eos_token_ids == (2, 0)


def test_an_unknown_tensor_name_is_a_key_error(tmp_path: Path) -> None:
    checkpoint = open_gguf(write_tiny_gguf(tmp_path / "m.gguf").path)
    with pytest.raises(KeyError):
        checkpoint.tensor("lm_head.weight")


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (
            {"general.architecture": "phi3"},
            "general.architecture: is 'phi3'; supported are 'llama'",
        ),
        ({"llama.block_count": None}, "llama.block_count: is missing"),
        ({"llama.block_count": 0}, "llama.block_count: is 0; must be a positive integer"),
        ({"llama.block_count": True}, "llama.block_count: is True; must be a positive integer"),
        ({"llama.attention.head_count_kv": 3}, "llama.attention.head_count_kv: is 3; must divide"),
        ({"llama.attention.head_count": [4, 4]}, "llama.attention.head_count: is [4, 4]"),
        ({"llama.embedding_length": 66}, "llama.embedding_length: is 66; must be a multiple of 4"),
        ({"llama.rope.dimension_count": 8}, "llama.rope.dimension_count: is 8"),
        (
            {"llama.rope.freq_base": float("nan")},
            "llama.rope.freq_base: is nan; must be a",
        ),
        ({"llama.rope.scaling.type": "yarn"}, "llama.rope.scaling.type: is 'yarn'"),
        (
            {"llama.rope.scaling.factor": float("inf")},
            "llama.rope.scaling.factor: is inf; must be a positive finite number",
        ),
        ({"llama.attention.sliding_window": 0}, "llama.attention.sliding_window: is 0; must be"),
        ({"llama.expert_count": 8}, "llama.expert_count: is 8; mixtures of experts"),
        ({"llama.vocab_size": 7}, "llama.vocab_size: is 7; must be the number of tokens, 303"),
        ({"tokenizer.ggml.eos_token_id": None}, "tokenizer.ggml.eos_token_id: is missing"),
        ({"tokenizer.ggml.eos_token_id": 303}, "tokenizer.ggml.eos_token_id: is 303; must be a"),
        ({"tokenizer.ggml.bos_token_id": 999}, "tokenizer.ggml.bos_token_id: is 999"),
        ({"tokenizer.chat_template": 1}, "tokenizer.chat_template: is 1; must be a string"),
        (
            {"tokenizer.chat_template": "{{ x }}\n{% if %}"},
            "tokenizer.chat_template: must be a Jinja template; line 2: Expected an expression",
        ),
        ({"split.count": 3}, "split.count: is 3; is one shard of several"),
    ],
)
def test_metadata_that_cannot_be_served_is_refused_by_name(
    tmp_path: Path, metadata: dict[str, Any], message: str
) -> None:
    path = tmp_path / "m.gguf"
    write_tiny_gguf(path, metadata=metadata)
    assert message in refusal(path)


def test_missing_foreign_and_misshapen_tensors_are_named_together(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_tiny_gguf(
        path,
        tensors={
            "blk.0.ffn_up.weight": None,
            "blk.1.ffn_up.weight": None,
            "blk.0.attn_q.bias": np.zeros(64, np.float32),
            "output_norm.weight": np.zeros(32, np.float32),
        },
    )
    text = refusal(path)
    assert "blk.0.ffn_up.weight: is missing (and 1 more tensors alike)" in text
    assert "blk.0.attn_q.bias: is no tensor of this architecture" in text
    assert "output_norm.weight: is [32]; the architecture asks for the shape [64]" in text


def test_unsupported_tensor_types_are_told_once_with_what_is_supported(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_tiny_gguf(path, matrices="TQ1_0", shape=K_SHAPE)
    text = refusal(path)
    assert "blk.0.attn_q.weight: is 'TQ1_0'; supported types are F32, F16, BF16, Q4_0" in text
    assert "(and 6 more tensors alike)" in text
    assert text.count("TQ1_0") == 1


def test_undefined_values_are_refused_when_the_tensor_is_read(tmp_path: Path) -> None:
    norm = np.ones(64, np.float32)
    norm[3] = np.nan
    path = tmp_path / "m.gguf"
    write_tiny_gguf(path, tensors={"output_norm.weight": norm})
    checkpoint = open_gguf(path)
    with pytest.raises(InvalidModel, match=r"output_norm\.weight: holds infinite"):
        checkpoint.tensor("model.norm.weight")


def test_a_file_cut_short_anywhere_is_refused(tmp_path: Path) -> None:
    whole = write_tiny_gguf(tmp_path / "whole.gguf", shape=TinyShape(layers=1)).path.read_bytes()
    path = tmp_path / "cut.gguf"
    for size in [0, 1, 4, 8, 20, 24, *range(40, len(whole), 4999), len(whole) - 64]:
        path.write_bytes(whole[:size])
        assert "is not a whole GGUF file" in refusal(path)


def test_an_array_longer_than_the_file_is_refused_at_once(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf").path
    data = path.read_bytes()
    key = b"tokenizer.ggml.token_type"
    length = data.index(key) + len(key) + 8  # after the value's and the elements' types
    path.write_bytes(data[:length] + (2**62).to_bytes(8, "little") + data[length + 8 :])
    assert "is not a whole GGUF file" in refusal(path)


def test_garbage_after_the_magic_never_escapes_as_another_error(tmp_path: Path) -> None:
    whole = write_tiny_gguf(tmp_path / "m.gguf", shape=TinyShape(layers=1)).path.read_bytes()
    random = np.random.default_rng(0)
    path = tmp_path / "garbage.gguf"
    refused: list[InvalidModel] = []
    for _ in range(150):
        data = bytearray(whole)
        for position in random.integers(4, 6000, size=8):
            data[position] = random.integers(256)
        path.write_bytes(data)
        try:
            checkpoint = open_gguf(path)
            for name in checkpoint.tensor_names():
                checkpoint.tensor(name)
        except InvalidModel as error:
            refused.append(error)
    assert len(refused) > 50
    assert all(problem.file == path for error in refused for problem in error.problems)


def test_other_files_are_refused_by_name(tmp_path: Path) -> None:
    text = tmp_path / "readme.gguf"
    text.write_text("not a model at all, but long enough to hold a header")
    assert "is not a whole GGUF file" in refusal(text)
    assert "cannot be read: No such file" in refusal(tmp_path / "nowhere.gguf")
    assert "is not a regular file" in refusal(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert "is not a regular file" in refusal(tmp_path / "pipe")


def test_heads_wider_than_the_embedding_are_read(tmp_path: Path) -> None:
    shape = replace(TinyShape(), layers=1)
    wide = {
        f"blk.0.attn_{name}.weight": np.ones((rows, columns), np.float32)
        for name, rows, columns in [
            ("q", 128, 64),
            ("k", 64, 64),
            ("v", 64, 64),
            ("output", 64, 128),
        ]
    }
    path = tmp_path / "m.gguf"
    lengths = {"llama.attention.key_length": 32, "llama.attention.value_length": 32}
    metadata = {**lengths, "llama.rope.dimension_count": 32}
    write_tiny_gguf(path, shape=shape, metadata=metadata, tensors=wide)
    checkpoint = open_gguf(path)
    assert checkpoint.architecture.head_dim == 32
    assert checkpoint.tensor("model.layers.0.self_attn.q_proj.weight").shape == (128, 64)
