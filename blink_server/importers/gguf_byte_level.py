"""GGUF's byte-level BPE: how text is cut before merging, by the name that the file gives.

GGUF stores only the *name* of the pre-tokenizer ("tokenizer.ggml.pre"); what each name stands
for is the table here, taken from the original models' tokenizer.json files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from blink_server.importers.gguf_metadata import Metadata
from blink_server.importers.gguf_vocabulary import TokenizerParts, read_tokens

_MERGES = "tokenizer.ggml.merges"


def _byte_level(*, use_regex: bool) -> dict[str, Any]:
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def _split(digits: str) -> dict[str, Any]:
    """The word pattern that GPT-4 made common, with the pattern of a group of digits."""
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|" + digits + r"|"
        r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    return _isolate(pattern)


def _isolate(pattern: str) -> dict[str, Any]:
    return {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }


# Mistral's: words break before a capital that follows a small letter; digits stand alone.
_TEKKEN_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class _PreTokenizer:
    """How text is cut before merging; `ByteLevel` with its regex is GPT-2's word pattern."""

    steps: tuple[dict[str, Any], ...]
    normalizer: dict[str, Any] | None = None
    ignore_merges: bool = False  # a word that is a token is taken whole
    add_bos: bool = False  # where the file does not say


_PRE_TOKENIZERS = {
    "gpt-2": _PreTokenizer((_byte_level(use_regex=True),)),
    "smollm": _PreTokenizer(
        ({"type": "Digits", "individual_digits": True}, _byte_level(use_regex=True))
    ),
    "llama-bpe": _PreTokenizer(
        (_split(r"\p{N}{1,3}"), _byte_level(use_regex=False)), ignore_merges=True, add_bos=True
    ),
    "tekken": _PreTokenizer(
        (_isolate(_TEKKEN_WORDS), _byte_level(use_regex=False)), ignore_merges=True, add_bos=True
    ),
    "qwen2": _PreTokenizer(
        (_split(r"\p{N}"), _byte_level(use_regex=False)), normalizer={"type": "NFC"}
    ),
}


def byte_level_parts(metadata: Metadata) -> TokenizerParts:
    """Raises `InvalidModel` for an unknown pre-tokenizer, and merges that are not of tokens."""
    pre = _PRE_TOKENIZERS.get(metadata.text("tokenizer.ggml.pre"))
    if pre is None:
        supported = ", ".join(repr(name) for name in _PRE_TOKENIZERS)
        raise metadata.invalid("tokenizer.ggml.pre", f"supported are {supported}")
    return TokenizerParts(
        normalizer=pre.normalizer,
        pre_tokenizer={"type": "Sequence", "pretokenizers": list(pre.steps)},
        decoder=_byte_level(use_regex=True),
        merges=_merges(metadata, set(read_tokens(metadata))),
        model={"ignore_merges": pre.ignore_merges},
        add_bos=pre.add_bos,
    )


def _merges(metadata: Metadata, tokens: set[str]) -> list[tuple[str, str]]:
    merges = []
    for rank, line in enumerate(metadata.texts(_MERGES)):
        left, _, right = line.partition(" ")
        if not {left, right, left + right} <= tokens:
            expected = f"entry {rank}, {line!r}, must join two tokens to a third"
            raise metadata.invalid(_MERGES, expected, show_value=False)
        merges.append((left, right))
    return merges
