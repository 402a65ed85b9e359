"""Words that an answer must not have, as a bias against the tokens that they are."""

from __future__ import annotations

from collections.abc import Sequence

from blink_server.errors import InvalidRequest
from blink_server.text.tokenizers import Tokenizer

MOST = 128
_NEVER = -100.0  # what OpenAI's logit_bias bans a token with


def bias_against(words: Sequence[str], tokenizer: Tokenizer) -> dict[int, float]:
    """The bias that keeps each word out, at the beginning of a text and after a space.

    Raises `InvalidRequest` for a word that is not one token: a ban of several would hit others.
    """
    bias = {}
    for word in words:
        token = _token(word, tokenizer)
        if token is None:
            raise InvalidRequest(
                f"bad_words has {word[:60]!r}, which is not one token of this model's; only such "
                "words can be kept out",
                param="bad_words",
            )
        bias[token] = _NEVER
        spaced = _token(f" {word}", tokenizer)
        if spaced is not None:
            bias[spaced] = _NEVER
    return bias


def _token(word: str, tokenizer: Tokenizer) -> int | None:
    # What cannot be one token is not encoded: that of a long text takes long.
    if len(word.encode(errors="replace")) > tokenizer.longest_token + 1:
        return None
    ids = tokenizer.encode(word, add_special_tokens=False)
    return ids[0] if len(ids) == 1 else None
