"""How chat and text completions look on the wire: whole responses, and chunks of a stream.

A stream has one chunk for each delta, so the constant parts of a chunk are serialized once.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import Any, Protocol

from blink_server.http.choice import Delta
from blink_server.http.logprobs import chat_logprobs, completion_logprobs
from blink_server.text.choice_text import ShownLogprob


@dataclass(frozen=True, slots=True)
class FinishedChoice:
    """A whole choice; `logprobs` None where they were not asked for."""

    index: int
    text: str
    logprobs: list[ShownLogprob] | None
    finish_reason: str


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    """OpenAI's usage object."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


class Wire(Protocol):
    """One response's serializer. Payloads are JSON objects on one line."""

    id: str

    def opening(self, choices: int) -> list[bytes]:
        """The payloads before the first delta."""
        ...

    def chunks(self, delta: Delta, used: dict[str, int] | None) -> list[bytes]:
        """The payloads of one delta; `used` where every chunk shall tell the usage so far."""
        ...

    def usage_chunk(self, used: dict[str, int]) -> bytes:
        """The payload that tells the usage at the end, with no choices."""
        ...

    def response(self, choices: Sequence[FinishedChoice], used: dict[str, int]) -> bytes:
        """The whole body of a response that is not streamed."""
        ...


class _Base:
    """What both shapes share: the envelope around `choices`."""

    def __init__(
        self,
        prefix: str,
        kind: str,
        chunk_kind: str,
        model: str,
        *,
        include_usage: bool,
        with_logprobs: bool,
    ) -> None:
        self.id = f"{prefix}-{uuid.uuid4().hex}"
        self._with_logprobs = with_logprobs
        created = int(time.time())
        self._envelope = {"id": self.id, "object": kind, "created": created, "model": model}
        head = json.dumps({**self._envelope, "object": chunk_kind})[:-1]
        self._head = f'{head}, "choices": ['.encode()
        self._tail = b'], "usage": null}' if include_usage else b"]}"

    def _chunk(self, choice: bytes, used: dict[str, int] | None) -> bytes:
        if used is None:
            return self._head + choice + self._tail
        return self._head + choice + b'], "usage": ' + json.dumps(used).encode() + b"}"

    def usage_chunk(self, used: dict[str, int]) -> bytes:
        return self._chunk(b"", used)

    def _logprobs(
        self,
        shown: Sequence[ShownLogprob] | None,
        shape: Callable[[Sequence[ShownLogprob]], dict[str, Any]],
    ) -> dict[str, Any] | None:
        return shape(shown or []) if self._with_logprobs else None

    def _body(self, choices: list[dict[str, Any]], used: dict[str, int]) -> bytes:
        return json.dumps({**self._envelope, "choices": choices, "usage": used}).encode()


class ChatWire(_Base):
    """chat.completion and chat.completion.chunk."""

    operation = "chat"

    def __init__(self, model: str, *, include_usage: bool, with_logprobs: bool) -> None:
        super().__init__(
            "chatcmpl",
            "chat.completion",
            "chat.completion.chunk",
            model,
            include_usage=include_usage,
            with_logprobs=with_logprobs,
        )

    def opening(self, choices: int) -> list[bytes]:
        delta = b'{"role": "assistant", "content": ""}'
        return [self._chunk(_chat_choice(index, delta), None) for index in range(choices)]

    def chunks(self, delta: Delta, used: dict[str, int] | None) -> list[bytes]:
        payloads = []
        if delta.text or delta.logprobs:
            content = b'{"content": ' + encode_basestring(delta.text).encode() + b"}"
            logprobs = self._logprobs(delta.logprobs, chat_logprobs)
            payloads.append(self._chunk(_chat_choice(delta.index, content, logprobs), used))
        if delta.finish_reason is not None:
            choice = _chat_choice(delta.index, b"{}", None, delta.finish_reason)
            payloads.append(self._chunk(choice, used))
        return payloads

    def response(self, choices: Sequence[FinishedChoice], used: dict[str, int]) -> bytes:
        rows = [
            {
                "index": choice.index,
                "message": {"role": "assistant", "content": choice.text, "refusal": None},
                "logprobs": self._logprobs(choice.logprobs, chat_logprobs),
                "finish_reason": choice.finish_reason,
            }
            for choice in choices
        ]
        return self._body(rows, used)


class CompletionWire(_Base):
    """text_completion, whole and in chunks."""

    operation = "text_completion"

    def __init__(self, model: str, *, include_usage: bool, with_logprobs: bool) -> None:
        super().__init__(
            "cmpl",
            "text_completion",
            "text_completion",
            model,
            include_usage=include_usage,
            with_logprobs=with_logprobs,
        )

    def opening(self, choices: int) -> list[bytes]:
        return []

    def chunks(self, delta: Delta, used: dict[str, int] | None) -> list[bytes]:
        logprobs = None
        if delta.logprobs:
            logprobs = self._logprobs(delta.logprobs, completion_logprobs)
        text = encode_basestring(delta.text).encode()
        choice = (
            b'{"index": %d, "text": ' % delta.index + text + _ending(logprobs, delta.finish_reason)
        )
        return [self._chunk(choice, used)]

    def response(self, choices: Sequence[FinishedChoice], used: dict[str, int]) -> bytes:
        rows = [
            {
                "index": choice.index,
                "text": choice.text,
                "logprobs": self._logprobs(choice.logprobs, completion_logprobs),
                "finish_reason": choice.finish_reason,
            }
            for choice in choices
        ]
        return self._body(rows, used)


def _chat_choice(
    index: int,
    delta: bytes,
    logprobs: dict[str, Any] | None = None,
    finish_reason: str | None = None,
) -> bytes:
    return b'{"index": %d, "delta": ' % index + delta + _ending(logprobs, finish_reason)


_NO_ENDING = b', "logprobs": null, "finish_reason": null}'


def _ending(logprobs: dict[str, Any] | None, finish_reason: str | None) -> bytes:
    if logprobs is None and finish_reason is None:
        return _NO_ENDING
    fields = json.dumps({"logprobs": logprobs, "finish_reason": finish_reason})
    return f", {fields[1:]}".encode()
