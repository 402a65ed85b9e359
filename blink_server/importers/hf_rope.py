"""How a Hugging Face config.json slows a model's rotation for longer contexts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from blink_server.importers.hf_fields import Fields
from blink_server.importers.rope_scaling import llama3_divisors

_KINDS = ("default", "linear", "llama3", "longrope")


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """`divisors` and `magnitude` as in `Architecture`, and the longest context they hold for."""

    divisors: tuple[float, ...] = ()
    magnitude: float = 1.0
    longest: int | None = None


def read_rope_scaling(fields: Fields, rope: Fields, theta: float, rotary_dim: int) -> RopeScaling:
    """Of heads of which `rotary_dim` elements turn. Raises `InvalidModel` for another kind.

    `fields` are the document's, `rope` those of its "rope_scaling" or "rope_parameters".
    """
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return RopeScaling()
    if kind == "linear":
        return RopeScaling((rope.number("factor"),) * (rotary_dim // 2))
    if kind == "llama3":
        return RopeScaling(_llama3(rope, theta, rotary_dim))
    if kind == "longrope":
        return _longrope(fields, rope, rotary_dim // 2)
    name = "rope_type" if rope.get("rope_type") is not None else "type"
    raise rope.invalid(name, f"supported are {', '.join(map(repr, _KINDS))}")


def _llama3(rope: Fields, theta: float, rotary_dim: int) -> tuple[float, ...]:
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    if low >= high:
        raise rope.invalid("high_freq_factor", f"must be above low_freq_factor, {low}")
    return llama3_divisors(
        theta,
        rotary_dim,
        factor=rope.number("factor"),
        low_frequency_factor=low,
        high_frequency_factor=high,
        original_context=rope.count("original_max_position_embeddings"),
    )


def _longrope(fields: Fields, rope: Fields, pairs: int) -> RopeScaling:
    """Phi 3's, within the context of its first training.

    A longer text would have other factors for all of its tokens, those before it became longer
    too; so the short ones are used, and the context ends where they do.
    """
    name = "original_max_position_embeddings"
    place = fields if rope.get(name) is None else rope
    original = place.count(name)
    if original < 2:
        raise place.invalid(name, "must be 2 or more")
    longest = fields.count("max_position_embeddings")
    factor = rope.number("factor", longest / original)
    usual = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    divisors = rope.numbers("short_factor")
    if len(divisors) != pairs:
        raise rope.invalid("short_factor", f"must have one number a pair that turns, {pairs}")
    return RopeScaling(divisors, rope.number("attention_factor", usual), original)
