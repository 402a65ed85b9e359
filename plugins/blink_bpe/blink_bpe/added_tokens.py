"""Added tokens of a tokenizer.json, in the form that the native tokenizer takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from blink_bpe.support import require

AddedToken = tuple[str, int, bool, bool, bool]
"""Content, id, single_word, lstrip, rstrip."""

Normalize = Callable[[str], str]


def added_entries(
    tokens: Iterable[Mapping[str, Any]], normalize: Normalize | None = None
) -> list[AddedToken]:
    """The tokens that are looked for together; `normalize` makes of each what is looked for.

    Raises `UnsupportedTokenizerError` for combinations that have no clear answer in the
    `tokenizers` library: it depends on the version, and some panic.
    """
    entries: list[AddedToken] = []
    for token in tokens:
        content = token["content"] if normalize is None else normalize(token["content"])
        flags = (token["single_word"], token["lstrip"], token["rstrip"])
        entries.append((content, token["id"], *flags))
    contents = [content for content, *_ in entries]
    blank = [content for content in contents if content[0].isspace()]
    greedy = [content for content, *_, rstrip in entries if rstrip]
    reason = f"is not supported beside added tokens that start with white space, as {blank[:1]}"
    require(not (greedy and blank), "added_tokens.rstrip", greedy, reason)
    unique = len(set(contents)) == len(contents)
    require(unique, "added_tokens", contents, "has two tokens that are found in the same text")
    return entries
