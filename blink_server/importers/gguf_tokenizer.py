"""Builds the `tokenizers` library's JSON from a GGUF file's vocabulary."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer

from blink_server.importers.gguf_byte_level import byte_level_parts
from blink_server.importers.gguf_metadata import Metadata
from blink_server.importers.gguf_sentencepiece import sentencepiece_parts
from blink_server.importers.gguf_vocabulary import (
    TOKENS,
    TokenizerParts,
    added_tokens,
    read_tokens,
)

_MODEL = "tokenizer.ggml.model"
_BOS = "tokenizer.ggml.bos_token_id"
_KINDS: Mapping[str, Callable[[Metadata], TokenizerParts]] = {
    "gpt2": byte_level_parts,
    "llama": sentencepiece_parts,
}


def build_tokenizer(metadata: Metadata) -> tuple[str, int | None]:
    """The tokenizer of the file, serialized as the `tokenizers` library reads it, and its BOS.

    The latter is the id that begins a text, None where the model wants none there. Control
    tokens become special tokens, user-defined ones plain added tokens; both are found in text
    before anything is cut. Raises `InvalidModel` for a tokenizer of another kind, an unknown
    pre-tokenizer, and vocabularies, scores or merges that do not fit together.
    """
    kind = metadata.text(_MODEL)
    if kind not in _KINDS:
        expected = "supported are 'gpt2' (byte-level BPE), 'llama' (SentencePiece BPE)"
        raise metadata.invalid(_MODEL, expected)
    parts = _KINDS[kind](metadata)
    tokens = read_tokens(metadata)
    bos = _beginning_id(metadata, len(tokens), parts.add_bos)
    specification = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added_tokens(metadata, tokens, has_byte_tokens=parts.has_byte_tokens),
        "normalizer": parts.normalizer,
        "pre_tokenizer": parts.pre_tokenizer,
        "post_processor": None if bos is None else _beginning_with(tokens, bos),
        "decoder": parts.decoder,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {text: token for token, text in enumerate(tokens)},
            "merges": parts.merges,
            **parts.model,
        },
    }
    try:
        tokenizer = Tokenizer.from_str(json.dumps(specification))
    except Exception as error:  # the library raises nothing more precise
        expected = f"does not make a tokenizer: {error}"
        raise metadata.invalid(TOKENS, expected, show_value=False) from error
    return str(tokenizer.to_str()), bos


def _beginning_id(metadata: Metadata, vocabulary_size: int, default: bool) -> int | None:
    bos = metadata.token_id(_BOS, vocabulary_size)
    if not metadata.flag("tokenizer.ggml.add_bos_token", default):
        return None
    if bos is None:
        raise metadata.invalid(_BOS, "is missing, and add_bos_token set")
    return bos


def _beginning_with(tokens: Sequence[str], bos: int) -> dict[str, Any]:
    """Puts the beginning-of-sequence token before a text."""
    text = tokens[bos]
    first = {"SpecialToken": {"id": text, "type_id": 0}}
    sequences = [{"Sequence": {"id": name, "type_id": 0}} for name in ("A", "B")]
    return {
        "type": "TemplateProcessing",
        "single": [first, sequences[0]],
        "pair": [first, sequences[0], first, sequences[1]],
        "special_tokens": {text: {"id": text, "ids": [bos], "tokens": [text]}},
    }
