"""Log-probabilities in OpenAI's two shapes: that of completions and that of chat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blink_server.text.choice_text import ShownLogprob

LOWEST = -9999.0
"""What stands for minus infinity, which JSON cannot say (vLLM's value)."""


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST)


def _name(data: bytes) -> str:
    """A token's text; bytes that are no whole characters are written as \\xe2."""
    return data.decode(errors="backslashreplace")


def chat_logprobs(shown: Sequence[ShownLogprob]) -> dict[str, Any]:
    """The "logprobs" object of a chat choice or delta: one entry a token, with its UTF-8 bytes."""
    return {"content": [_chat_entry(one) for one in shown], "refusal": None}


def _chat_entry(shown: ShownLogprob) -> dict[str, Any]:
    return {
        **_chat_token(shown.data, shown.logprob),
        "top_logprobs": [_chat_token(data, value) for data, value in shown.top],
    }


def _chat_token(data: bytes, logprob: float) -> dict[str, Any]:
    return {"token": _name(data), "logprob": _finite(logprob), "bytes": list(data)}


def completion_logprobs(shown: Sequence[ShownLogprob]) -> dict[str, Any]:
    """The "logprobs" object of a completion: parallel lists; offsets count generated characters.

    Each of `top_logprobs` also has the chosen token, as OpenAI's does.
    """
    return {
        "tokens": [_name(one.data) for one in shown],
        "token_logprobs": [_finite(one.logprob) for one in shown],
        "top_logprobs": [_completion_top(one) for one in shown],
        "text_offset": [one.offset for one in shown],
    }


def _completion_top(shown: ShownLogprob) -> dict[str, float]:
    top = {_name(data): _finite(value) for data, value in shown.top}
    return {**top, _name(shown.data): _finite(shown.logprob)}
