"""How what is not supported is said, and the steps that a part of a tokenizer.json consists of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


class UnsupportedTokenizerError(Exception):
    """A tokenizer.json uses something that `blink_bpe` does not support."""

    def __init__(self, field: str, value: object, reason: str) -> None:
        super().__init__(f"{field}: {value!r} {reason}")
        self.field = field
        self.value = value
        self.reason = reason


def require(supported: bool, field: str, value: object, reason: str) -> None:
    """Raises `UnsupportedTokenizerError` unless `supported`."""
    if not supported:
        raise UnsupportedTokenizerError(field, value, reason)


def steps(part: Mapping[str, Any] | None, inner: str) -> Iterator[Mapping[str, Any]]:
    """The steps of a part in their order; `inner` is where a "Sequence" of them has its own."""
    if part is None:
        return
    if part["type"] != "Sequence":
        yield part
        return
    for step in part[inner]:
        yield from steps(step, inner)
