"""A Hugging Face config.json as an `Architecture`, or refused by field and value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blink_server.errors import InvalidModel, Problem
from blink_server.importers.checkpoint import Architecture
from blink_server.importers.rope_scaling import llama3_divisors
from blink_server.json_file import read_json

CONFIG_FILE = "config.json"


@dataclass(frozen=True, slots=True)
class _Family:
    """How a model_type differs from Llama."""

    architecture: str
    attention_bias: bool = False
    qk_norm: bool = False
    window_is_optional: bool = False  # "sliding_window" counts only with "use_sliding_window"


FAMILIES = {
    "llama": _Family("LlamaForCausalLM"),
    "mistral": _Family("MistralForCausalLM"),
    "qwen2": _Family("Qwen2ForCausalLM", attention_bias=True, window_is_optional=True),
    "qwen3": _Family("Qwen3ForCausalLM", qk_norm=True, window_is_optional=True),
}


class _Fields:
    """Fields of one file; null counts as absent. Getters raise `InvalidModel` with the field."""

    def __init__(self, path: Path, values: Mapping[str, Any], prefix: str = "") -> None:
        self.path = path
        self._values = values
        self._prefix = prefix

    def get(self, name: str, default: Any = None) -> Any:
        value = self._values.get(name)
        return default if value is None else value

    def count(self, name: str, default: int | None = None) -> int:
        """A positive whole number."""
        value = self.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.invalid(name, "must be a positive whole number")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A positive number."""
        value = self.get(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
            raise self.invalid(name, "must be a positive number")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self.invalid(name, "must be true or false")
        return value

    def nested(self, name: str) -> _Fields:
        """The fields of an object; of an empty one where there is none."""
        value = self.get(name, {})
        if not isinstance(value, dict):
            raise self.invalid(name, "must be an object")
        return _Fields(self.path, value, f"{self._prefix}{name}.")

    def invalid(self, name: str, expected: str) -> InvalidModel:
        """The error about one field: "is missing" or its value, and what would be right."""
        found = self._values.get(name)
        said = expected if found is not None else f"is missing; {expected}"
        return InvalidModel([Problem(self.path, f"{self._prefix}{name}", found, said)])


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
    fields = _Fields(path, document)
    family = _family(fields)
    _refuse_variants(fields, family)
    hidden_size, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    kv_heads = fields.count("num_key_value_heads", heads)
    if heads % kv_heads:
        raise fields.invalid("num_key_value_heads", f"must divide the {heads} attention heads")
    if hidden_size % heads and fields.get("head_dim") is None:
        raise fields.invalid("hidden_size", f"must be a multiple of the {heads} attention heads")
    head_dim = fields.count("head_dim", max(hidden_size // heads, 1))
    if head_dim % 2:
        raise fields.invalid("head_dim", "must be even")
    rope = fields.nested("rope_parameters" if fields.get("rope_parameters") else "rope_scaling")
    theta = rope.number("rope_theta", fields.number("rope_theta", 10000.0))
    return Architecture(
        family="llama",
        layers=fields.count("num_hidden_layers"),
        hidden_size=hidden_size,
        intermediate_size=fields.count("intermediate_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocabulary_size=fields.count("vocab_size"),
        context_length=_context_length(fields, family),
        rope_theta=theta,
        rms_norm_eps=fields.number("rms_norm_eps"),
        tied_embeddings=fields.flag("tie_word_embeddings"),
        attention_bias=family.attention_bias,
        qk_norm=family.qk_norm,
        rope_divisors=_rope_divisors(rope, theta, head_dim),
    )


def _family(fields: _Fields) -> _Family:
    model_type = fields.get("model_type")
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        supported = ", ".join(repr(name) for name in FAMILIES)
        raise fields.invalid("model_type", f"supported are {supported}")
    if fields.get("architectures", [family.architecture]) != [family.architecture]:
        raise fields.invalid("architectures", f"supported is [{family.architecture!r}]")
    return family


def _refuse_variants(fields: _Fields, family: _Family) -> None:
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
        ("partial_rotary_factor", 1.0, "supported is 1.0"),
    ):
        if fields.get(name, supported) != supported:
            raise fields.invalid(name, expected)


def _context_length(fields: _Fields, family: _Family) -> int:
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


def _rope_divisors(rope: _Fields, theta: float, head_dim: int) -> tuple[float, ...]:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return ()
    if kind == "linear":
        return (rope.number("factor"),) * (head_dim // 2)
    if kind == "llama3":
        low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
        if low >= high:
            raise rope.invalid("high_freq_factor", f"must be above low_freq_factor, {low}")
        return llama3_divisors(
            theta,
            head_dim,
            factor=rope.number("factor"),
            low_frequency_factor=low,
            high_frequency_factor=high,
            original_context=rope.count("original_max_position_embeddings"),
        )
    name = "rope_type" if rope.get("rope_type") is not None else "type"
    raise rope.invalid(name, "supported are 'default', 'linear', 'llama3'")
