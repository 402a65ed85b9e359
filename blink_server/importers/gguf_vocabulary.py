"""What GGUF's tokenizers have in common: tokens, and what kind of parts go around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gguf import TokenType

from blink_server.importers.gguf_metadata import Metadata

TOKENS = "tokenizer.ggml.tokens"
TYPES = "tokenizer.ggml.token_type"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerParts:
    """What differs between kinds of tokenizers, as the `tokenizers` library writes it.

    `model` replaces fields of its BPE model; `add_bos` holds where the file does not say.
    """

    normalizer: Mapping[str, Any] | None
    pre_tokenizer: Mapping[str, Any] | None
    decoder: Mapping[str, Any]
    merges: Sequence[tuple[str, str]]
    model: Mapping[str, Any]
    add_bos: bool
    has_byte_tokens: bool = False


def read_tokens(metadata: Metadata) -> list[str]:
    """The texts of the tokens by id. Raises `InvalidModel` where one is there twice."""
    tokens = metadata.texts(TOKENS)
    places = {text: token for token, text in enumerate(tokens)}
    if len(places) != len(tokens):
        twice = next(text for token, text in enumerate(tokens) if places[text] != token)
        raise metadata.invalid(TOKENS, f"holds {twice!r} twice", show_value=False)
    return tokens


def read_types(metadata: Metadata, tokens: Sequence[str]) -> list[int]:
    """The `TokenType` of each token. Raises `InvalidModel`."""
    types = metadata.integers(TYPES)
    if len(types) != len(tokens):
        expected = f"must have one entry for each of {len(tokens)} tokens, has {len(types)}"
        raise metadata.invalid(TYPES, expected, show_value=False)
    return types


def added_tokens(
    metadata: Metadata, tokens: Sequence[str], *, has_byte_tokens: bool
) -> list[dict[str, Any]]:
    """Tokens that are found in text before it is cut: control, unknown and user-defined ones."""
    whole = {TokenType.NORMAL, TokenType.UNUSED} | ({TokenType.BYTE} if has_byte_tokens else set())
    added = []
    for token, kind in enumerate(read_types(metadata, tokens)):
        if kind in whole:
            continue
        if kind not in (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED):
            expected = f"entry {token} ({tokens[token]!r}) is {kind}, not a type of such tokens"
            raise metadata.invalid(TYPES, expected, show_value=False)
        added.append(
            {
                "id": token,
                "content": tokens[token],
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": kind != TokenType.USER_DEFINED,
            }
        )
    return added
