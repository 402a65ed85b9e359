"""Builds the `tokenizers` library's JSON from a GGUF file's vocabulary.

GGUF stores a byte-level BPE as tokens, types and merges, and only the *name* of its
pre-tokenizer ("tokenizer.ggml.pre"); what each name stands for is the table here, taken from
the original models' tokenizer.json files.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from gguf import TokenType
from tokenizers import Tokenizer

from blink_server.importers.gguf_metadata import Metadata

_TOKENS = "tokenizer.ggml.tokens"
_TYPES = "tokenizer.ggml.token_type"
_BOS = "tokenizer.ggml.bos_token_id"
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


def build_tokenizer_json(metadata: Metadata) -> str:
    """The tokenizer of the file, serialized as the `tokenizers` library reads it.

    Control tokens become special tokens, user-defined ones plain added tokens; both are found
    in text before anything is cut. Raises `InvalidModel` for a tokenizer of another kind, an
    unknown pre-tokenizer, and vocabularies or merges that do not fit together.
    """
    if metadata.text("tokenizer.ggml.model") != "gpt2":
        raise metadata.invalid("tokenizer.ggml.model", "supported is 'gpt2' (byte-level BPE)")
    pre = _pre_tokenizer(metadata)
    tokens = metadata.texts(_TOKENS)
    specification = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(metadata, tokens),
        "normalizer": pre.normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": list(pre.steps)},
        "post_processor": _post_processor(metadata, tokens),
        "decoder": _byte_level(use_regex=True),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre.ignore_merges,
            "vocab": _vocabulary(metadata, tokens),
            "merges": _merges(metadata, set(tokens)),
        },
    }
    try:
        tokenizer = Tokenizer.from_str(json.dumps(specification))
    except Exception as error:  # the library raises nothing more precise
        expected = f"does not make a tokenizer: {error}"
        raise metadata.invalid(_TOKENS, expected, show_value=False) from error
    return str(tokenizer.to_str())


def beginning_id(metadata: Metadata, vocabulary_size: int) -> int | None:
    """The id that begins a text, where the model wants one there. Raises `InvalidModel`."""
    bos = metadata.token_id(_BOS, vocabulary_size)
    default = _pre_tokenizer(metadata).add_bos
    if not metadata.flag("tokenizer.ggml.add_bos_token", default):
        return None
    if bos is None:
        raise metadata.invalid(_BOS, "is missing, and add_bos_token set")
    return bos


def _pre_tokenizer(metadata: Metadata) -> _PreTokenizer:
    pre = _PRE_TOKENIZERS.get(metadata.text("tokenizer.ggml.pre"))
    if pre is None:
        supported = ", ".join(repr(name) for name in _PRE_TOKENIZERS)
        raise metadata.invalid("tokenizer.ggml.pre", f"supported are {supported}")
    return pre


def _vocabulary(metadata: Metadata, tokens: list[str]) -> dict[str, int]:
    vocabulary = {text: token for token, text in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        twice = next(text for token, text in enumerate(tokens) if vocabulary[text] != token)
        raise metadata.invalid(_TOKENS, f"holds {twice!r} twice", show_value=False)
    return vocabulary


def _merges(metadata: Metadata, tokens: set[str]) -> list[tuple[str, str]]:
    merges = []
    for rank, line in enumerate(metadata.texts(_MERGES)):
        left, _, right = line.partition(" ")
        if not {left, right, left + right} <= tokens:
            expected = f"entry {rank}, {line!r}, must join two tokens to a third"
            raise metadata.invalid(_MERGES, expected, show_value=False)
        merges.append((left, right))
    return merges


def _added_tokens(metadata: Metadata, tokens: list[str]) -> list[dict[str, Any]]:
    types = metadata.integers(_TYPES)
    if len(types) != len(tokens):
        expected = f"must have one entry for each of {len(tokens)} tokens, has {len(types)}"
        raise metadata.invalid(_TYPES, expected, show_value=False)
    added = []
    for token, (text, kind) in enumerate(zip(tokens, types, strict=True)):
        if kind in (TokenType.NORMAL, TokenType.UNUSED):
            continue
        if kind not in (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED):
            expected = f"entry {token} ({text!r}) is {kind}, not a type of byte-level BPE tokens"
            raise metadata.invalid(_TYPES, expected, show_value=False)
        added.append(
            {
                "id": token,
                "content": text,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": kind != TokenType.USER_DEFINED,
            }
        )
    return added


def _post_processor(metadata: Metadata, tokens: list[str]) -> dict[str, Any] | None:
    """Puts the beginning-of-sequence token before a text, where the model wants one."""
    bos = beginning_id(metadata, len(tokens))
    if bos is None:
        return None
    text = tokens[bos]
    first = {"SpecialToken": {"id": text, "type_id": 0}}
    sequences = [{"Sequence": {"id": name, "type_id": 0}} for name in ("A", "B")]
    return {
        "type": "TemplateProcessing",
        "single": [first, sequences[0]],
        "pair": [first, sequences[0], first, sequences[1]],
        "special_tokens": {text: {"id": text, "ids": [bos], "tokens": [text]}},
    }
