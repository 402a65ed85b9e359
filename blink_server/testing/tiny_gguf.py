"""A tiny random model in a real GGUF file: everything a model has, in a few hundred kilobytes.

For tests that need a model but not its wisdom: no network, the same bytes for the same seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from tokenizers.pre_tokenizers import ByteLevel

Array = npt.NDArray[np.float32]

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# Where the float16 scales of a block are, and what makes its weights' variance about 1.
_K_QUANTS = {"Q4_K": ((0, 1 / 200), (2, 7.5 / 200)), "Q6_K": ((208, 1 / 1350),)}
_WORDS = ("Ġthe", "Ġcapital", "Ġcity", "Hello", "Ġworld", "user", "assistant", "system", "Ġanswer")


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyShape:
    """Sizes of the model. `hidden_size` and `intermediate_size` are multiples of 32."""

    layers: int = 2
    hidden_size: int = 64
    intermediate_size: int = 128
    heads: int = 4
    kv_heads: int = 2
    context_length: int = 512

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.heads


@dataclass(frozen=True, slots=True)
class TinyModel:
    """What was written: the file, its vocabulary by id, and its weights as float32.

    `weights` has Hugging Face's names and layout (half-split rotary), and the values that the
    file's quantized blocks stand for, so that it is the reference for whoever reads the file.
    """

    path: Path
    tokens: list[str]
    weights: dict[str, Array]


def write_tiny_gguf(
    path: Path,
    seed: int = 0,
    *,
    architecture: str = "llama",
    shape: TinyShape | None = None,
    matrices: str = "Q4_1",
    embeddings: str = "Q8_0",
    tied: bool = True,
    pre: str = "smollm",
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Array | None] | None = None,
) -> TinyModel:
    """Write a random model to `path`; the same arguments give the same bytes.

    `architecture` is "llama", "qwen2" or "qwen3". `matrices` and `embeddings` (also the untied
    head's) are GGUF type names that the `gguf` package can quantize to, "Q4_1", "Q8_0", "F16",
    ..., or "Q4_K", "Q6_K", whose blocks are random (sizes are multiples of 256 then).
    `metadata` and `tensors` replace entries by their GGUF names, add new ones (tensors as F32),
    or, where None, leave them out: with them a test makes the damaged or foreign file it needs.
    """
    shape = shape or TinyShape()
    tokens, merges = _vocabulary()
    weights: dict[str, Array] = {}
    fields = _metadata(architecture, shape, tokens, merges, pre) | dict(metadata or {})
    writer = gguf.GGUFWriter(path, fields.pop("general.architecture"))
    for key, value in fields.items():
        _add_field(writer, key, value)
    replaced = dict(tensors or {})
    for name, canonical, values in _random_weights(architecture, shape, len(tokens), tied, seed):
        kind = _type_of(name, values, matrices, embeddings)
        heads = _heads_of(name, shape) if architecture == "llama" else 0
        stored = _encode(values, kind)
        if name not in replaced:
            rows = _permute(stored, heads) if heads else stored
            writer.add_tensor(name, rows, raw_dtype=kind)
            weights[canonical] = gguf.dequantize(stored, kind)
    for name, extra in replaced.items():
        if extra is not None:
            writer.add_tensor(name, extra)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return TinyModel(path, tokens, weights)


def _vocabulary() -> tuple[list[str], list[str]]:
    """Token texts by id (special tokens, the 256 bytes, merged pieces) and merges by rank."""
    merges: dict[str, None] = {}
    for word in _WORDS:
        for end in range(1, len(word)):
            merges.setdefault(f"{word[:end]} {word[end]}")
    pieces = [merge.replace(" ", "") for merge in merges]
    return [*SPECIAL_TOKENS, *sorted(ByteLevel.alphabet()), *pieces], list(merges)


def _metadata(
    architecture: str, shape: TinyShape, tokens: list[str], merges: list[str], pre: str
) -> dict[str, Any]:
    control, normal = int(gguf.TokenType.CONTROL), int(gguf.TokenType.NORMAL)
    return {
        "general.architecture": architecture,
        "general.name": "tiny",
        f"{architecture}.block_count": shape.layers,
        f"{architecture}.context_length": shape.context_length,
        f"{architecture}.embedding_length": shape.hidden_size,
        f"{architecture}.feed_forward_length": shape.intermediate_size,
        f"{architecture}.attention.head_count": shape.heads,
        f"{architecture}.attention.head_count_kv": shape.kv_heads,
        f"{architecture}.rope.freq_base": 10000.0,
        f"{architecture}.rope.dimension_count": shape.head_dim,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{architecture}.vocab_size": len(tokens),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [
            control if text in SPECIAL_TOKENS else normal for text in tokens
        ],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def _add_field(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif value is not None:
        writer.add_array(key, value)


def _random_weights(
    architecture: str, shape: TinyShape, vocabulary: int, tied: bool, seed: int
) -> list[tuple[str, str, Array]]:
    """(GGUF name, Hugging Face name, float32 values in Hugging Face's layout) of every tensor."""
    random = np.random.default_rng(seed)
    hidden, inner = shape.hidden_size, shape.intermediate_size
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim

    def matrix(rows: int, columns: int) -> Array:
        values = random.standard_normal((rows, columns), dtype=np.float32)
        return values / np.float32(columns**0.5)

    def norm(size: int = hidden) -> Array:
        return random.uniform(0.5, 1.5, size).astype(np.float32)

    weights = [
        ("token_embd.weight", "model.embed_tokens.weight", matrix(vocabulary, hidden)),
        ("output_norm.weight", "model.norm.weight", norm()),
    ]
    if not tied:
        weights.append(("output.weight", "lm_head.weight", matrix(vocabulary, hidden)))
    for layer in range(shape.layers):
        for name, canonical, values in (
            ("attn_norm", "input_layernorm", norm()),
            ("attn_q", "self_attn.q_proj", matrix(queries, hidden)),
            ("attn_k", "self_attn.k_proj", matrix(keys, hidden)),
            ("attn_v", "self_attn.v_proj", matrix(keys, hidden)),
            ("attn_output", "self_attn.o_proj", matrix(hidden, queries)),
            ("ffn_norm", "post_attention_layernorm", norm()),
            ("ffn_gate", "mlp.gate_proj", matrix(inner, hidden)),
            ("ffn_up", "mlp.up_proj", matrix(inner, hidden)),
            ("ffn_down", "mlp.down_proj", matrix(hidden, inner)),
        ):
            weights.append(
                (f"blk.{layer}.{name}.weight", f"model.layers.{layer}.{canonical}.weight", values)
            )
        if architecture == "qwen2":
            for part, size in (("q", queries), ("k", keys), ("v", keys)):
                canonical = f"model.layers.{layer}.self_attn.{part}_proj.bias"
                weights.append((f"blk.{layer}.attn_{part}.bias", canonical, norm(size) - 1))
        if architecture == "qwen3":
            for part in ("q", "k"):
                canonical = f"model.layers.{layer}.self_attn.{part}_norm.weight"
                name = f"blk.{layer}.attn_{part}_norm.weight"
                weights.append((name, canonical, norm(shape.head_dim)))
    return weights


def _type_of(name: str, values: Array, matrices: str, embeddings: str) -> gguf.GGMLQuantizationType:
    if values.ndim == 1:
        return gguf.GGMLQuantizationType.F32
    kind = embeddings if name in {"token_embd.weight", "output.weight"} else matrices
    return gguf.GGMLQuantizationType[kind]


def _encode(values: Array, kind: gguf.GGMLQuantizationType) -> npt.NDArray[Any]:
    """Values in a type of GGUF's; of a K-quant, random blocks of about the values' size.

    A row stays a row: bytes [rows, bytes of a row], or numbers [rows, columns].
    """
    if kind.name not in _K_QUANTS:
        encoded: npt.NDArray[Any] = gguf.quantize(values, kind)
        return encoded
    rows, columns = values.shape
    random = np.random.default_rng(rows * columns)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (rows, columns // block, size), dtype=np.uint8)
    for place, share in _K_QUANTS[kind.name]:
        scale = np.float16(share / columns**0.5)
        blocks[:, :, place : place + 2] = np.frombuffer(scale.tobytes(), np.uint8)
    return blocks.reshape(rows, -1)


def _heads_of(name: str, shape: TinyShape) -> int:
    """Heads whose rows GGUF interleaves in this tensor, or 0."""
    if name.endswith("attn_q.weight"):
        return shape.heads
    return shape.kv_heads if name.endswith("attn_k.weight") else 0


def _permute(values: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    """Rows from half-split to interleaved rotary order, as converters to GGUF do for Llama."""
    rows, columns = values.shape
    halves = values.reshape(heads, 2, rows // heads // 2, columns)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows, columns))
