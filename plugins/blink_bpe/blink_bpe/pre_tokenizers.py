"""The pre-tokenizers that are supported, by the patterns that the native tokenizer knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from blink_bpe.support import UnsupportedTokenizerError, require, steps

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PATTERNS: Mapping[str, str] = {
    _GPT2: "gpt2",
    _GPT4.replace("DIGITS", r"\p{N}{1,3}"): "llama3",
    _GPT4.replace("DIGITS", r"\p{N}"): "qwen2",
}
"""The native name of each regular expression. They match every text completely."""


def pattern_name(pre_tokenizer: Mapping[str, Any] | None) -> str:
    """The native pattern of a tokenizer.json's "pre_tokenizer".

    Raises `UnsupportedTokenizerError`.
    """
    parts = list(steps(pre_tokenizer, "pretokenizers"))
    byte_level = parts.pop() if parts else {}
    kind = byte_level.get("type")
    require(kind == "ByteLevel", "pre_tokenizer", kind, "the last step must be ByteLevel")
    prefix = byte_level["add_prefix_space"]
    require(not prefix, "pre_tokenizer.add_prefix_space", prefix, "must be false")
    if byte_level["use_regex"]:
        return _before_gpt2(parts)
    kinds = [part["type"] for part in parts]
    require(kinds == ["Split"], "pre_tokenizer", kinds, "before ByteLevel must be one Split")
    return _split_pattern(parts[0])


def _before_gpt2(parts: Sequence[Mapping[str, Any]]) -> str:
    """ByteLevel cuts with GPT-2's pattern itself; digits may have been set apart before."""
    kinds = [part["type"] for part in parts]
    require(kinds in ([], ["Digits"]), "pre_tokenizer", kinds, "is not supported before ByteLevel")
    if not parts:
        return "gpt2"
    individual = parts[0]["individual_digits"]
    require(individual, "pre_tokenizer.individual_digits", individual, "must be true")
    return "gpt2_digits"


def _split_pattern(split: Mapping[str, Any]) -> str:
    require(not split["invert"], "pre_tokenizer.invert", split["invert"], "must be false")
    behavior = split["behavior"]
    require(behavior == "Isolated", "pre_tokenizer.behavior", behavior, "must be 'Isolated'")
    pattern = split["pattern"].get("Regex")
    if pattern not in PATTERNS:
        raise UnsupportedTokenizerError("pre_tokenizer.pattern", pattern, "is not a known pattern")
    return PATTERNS[pattern]
