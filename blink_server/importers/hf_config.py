"""A Hugging Face config.json as an `Architecture`, or refused by field and value."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from blink_server.errors import InvalidModel, Problem
from blink_server.importers.checkpoint import Architecture
from blink_server.importers.hf_fields import Fields
from blink_server.importers.hf_rope import read_rope_scaling
from blink_server.json_file import read_json

CONFIG_FILE = "config.json"


@dataclass(frozen=True, slots=True)
class _Family:
    """How a model_type differs from Llama."""

    architecture: str
    attention_bias: bool = False
    qk_norm: bool = False
    window_is_optional: bool = False  # "sliding_window" counts only with "use_sliding_window"
    partial_rotary: bool = False  # a part of each head may turn
    experts: bool = False


FAMILIES = {
    "llama": _Family("LlamaForCausalLM"),
    "mistral": _Family("MistralForCausalLM"),
    "qwen2": _Family("Qwen2ForCausalLM", attention_bias=True, window_is_optional=True),
    "qwen3": _Family("Qwen3ForCausalLM", qk_norm=True, window_is_optional=True),
    "qwen3_moe": _Family(
        "Qwen3MoeForCausalLM", qk_norm=True, window_is_optional=True, experts=True
    ),
    "phi3": _Family("Phi3ForCausalLM", partial_rotary=True),
}


def read_architecture(directory: Path) -> Architecture:
    """The architecture that a directory's config.json describes.

    A sliding window is honoured by a context no longer than the window, within which it has no
    effect. Raises `InvalidModel` for another architecture and for what this server cannot
    compute: the file, the field, its value.
    """
    path = directory / CONFIG_FILE
    document = read_json(path)
    if not isinstance(document, dict):
        raise InvalidModel([Problem(path, "", None, "must be an object")])
    fields = Fields(path, document)
    family = _family(fields)
    rope = fields.nested("rope_parameters" if fields.get("rope_parameters") else "rope_scaling")
    _refuse_variants(fields, rope, family)
    hidden_size, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    kv_heads = fields.count("num_key_value_heads", heads)
    if heads % kv_heads:
        raise fields.invalid("num_key_value_heads", f"must divide the {heads} attention heads")
    if hidden_size % heads and fields.get("head_dim") is None:
        raise fields.invalid("hidden_size", f"must be a multiple of the {heads} attention heads")
    head_dim = fields.count("head_dim", max(hidden_size // heads, 1))
    if head_dim % 2:
        raise fields.invalid("head_dim", "must be even")
    theta = rope.number("rope_theta", fields.number("rope_theta", 10000.0))
    rotary_dim = _rotary_dim(fields, rope, head_dim)
    scaling = read_rope_scaling(fields, rope, theta, rotary_dim or head_dim)
    experts, experts_per_token = _experts(fields) if family.experts else (0, 0)
    inner = "moe_intermediate_size" if family.experts else "intermediate_size"
    return Architecture(
        family="qwen3_moe" if family.experts else "llama",
        layers=fields.count("num_hidden_layers"),
        hidden_size=hidden_size,
        intermediate_size=fields.count(inner),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocabulary_size=fields.count("vocab_size"),
        context_length=min(_context_length(fields, family), scaling.longest or sys.maxsize),
        rope_theta=theta,
        rms_norm_eps=fields.number("rms_norm_eps"),
        tied_embeddings=fields.flag("tie_word_embeddings"),
        attention_bias=family.attention_bias,
        qk_norm=family.qk_norm,
        rope_divisors=scaling.divisors,
        rotary_dim=rotary_dim,
        rope_magnitude=scaling.magnitude,
        experts=experts,
        experts_per_token=experts_per_token,
    )


def _family(fields: Fields) -> _Family:
    model_type = fields.get("model_type")
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        supported = ", ".join(repr(name) for name in FAMILIES)
        raise fields.invalid("model_type", f"supported are {supported}")
    if fields.get("architectures", [family.architecture]) != [family.architecture]:
        raise fields.invalid("architectures", f"supported is [{family.architecture!r}]")
    return family


def _refuse_variants(fields: Fields, rope: Fields, family: _Family) -> None:
    """Refuse what shares a supported model_type but would be computed wrongly."""
    if fields.get("quantization_config") is not None:
        method = fields.nested("quantization_config")
        raise method.invalid("quant_method", "import the model's original, unquantized weights")
    for name, supported, expected in (
        ("hidden_act", "silu", "supported is 'silu'"),
        ("mlp_bias", False, "biases there are not supported"),
        (
            "attention_bias",
            family.attention_bias,
            f"must be {family.attention_bias} in this family".lower(),
        ),
        ("rope_interleaved", False, "supported is false"),
    ):
        if fields.get(name, supported) != supported:
            raise fields.invalid(name, expected)
    for place in (fields, rope):
        if not family.partial_rotary and place.get("partial_rotary_factor", 1.0) != 1.0:
            raise place.invalid("partial_rotary_factor", "supported is 1.0")


def _experts(fields: Fields) -> tuple[int, int]:
    """How many each layer has, and how many of them serve a token."""
    for name, usual, supported in (
        ("decoder_sparse_step", 1, 1),
        ("mlp_only_layers", [], []),
        ("norm_topk_prob", False, True),
    ):
        if fields.get(name, usual) != supported:
            raise fields.invalid(name, f"supported is {json.dumps(supported)}")
    name = "num_experts" if fields.get("num_experts") else "num_local_experts"
    experts, chosen = fields.count(name), fields.count("num_experts_per_tok")
    if chosen > experts:
        raise fields.invalid("num_experts_per_tok", f"must be at most {name}, {experts}")
    return experts, chosen


def _rotary_dim(fields: Fields, rope: Fields, head_dim: int) -> int:
    """Elements of a head that turn, 0 for all of them."""
    name = "partial_rotary_factor"
    place = fields if rope.get(name) is None else rope
    size = int(head_dim * place.number(name, 1.0))
    if size % 2 or not 0 < size <= head_dim:
        raise place.invalid(name, f"must be an even part of the {head_dim} elements of a head")
    return 0 if size == head_dim else size


def _context_length(fields: Fields, family: _Family) -> int:
    longest = fields.count("max_position_embeddings")
    kinds = fields.get("layer_types", [])
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        if kind not in ("full_attention", "sliding_attention"):
            raise fields.invalid("layer_types", "known are 'full_attention', 'sliding_attention'")
    slides = "sliding_attention" in kinds if kinds else not family.window_is_optional
    slides = slides or fields.flag("use_sliding_window")
    if not slides or fields.get("sliding_window") is None:
        return longest
    return min(longest, fields.count("sliding_window"))
