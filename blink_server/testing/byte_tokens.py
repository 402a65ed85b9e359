"""A vocabulary of bytes and a few longer tokens, and grammars over it, for tests of backends."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from blink_server.backend import Grammar, TokenBytes
from blink_server.text.grammar.constraint import Spec
from blink_server.text.grammar.specs import compile_spec

LONGER = ('{"', '": ', '", "', '"}', "[[", "]]", "ab", "é", "true", "12", '"a"', "]}", ", ")
VOCABULARY = 256 + len(LONGER)


def byte_tokens() -> TokenBytes:
    """Token i is byte i; behind them are `LONGER`."""
    pieces = [bytes([byte]) for byte in range(256)] + [text.encode() for text in LONGER]
    offsets = np.cumsum([0, *map(len, pieces)]).astype(np.uint64)
    return TokenBytes(np.frombuffer(b"".join(pieces), np.uint8), offsets, "bytes")


def text_of(tokens: Sequence[int]) -> bytes:
    """What these tokens spell."""
    return b"".join(bytes([t]) if t < 256 else LONGER[t - 256].encode() for t in tokens)


def grammar_of(spec: Spec, tokens: TokenBytes) -> Grammar:
    """The grammar of a constraint's spec. Raises `GrammarRefused`."""
    found = compile_spec(spec)
    return Grammar(
        found.class_of, found.next, found.accepting, found.digest, tokens, param="response_format"
    )
