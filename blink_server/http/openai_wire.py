"""Chat and text completions on the wire.

A stream has one chunk for each delta, so the constant parts of a chunk are serialized once.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from json.encoder import encode_basestring
from typing import Any

from blink_server.http import sse
from blink_server.http.choice import Delta
from blink_server.http.errors import ErrorReply
from blink_server.http.logprobs import chat_logprobs, completion_logprobs
from blink_server.http.openai_requests import TextRequest
from blink_server.http.tool_calls import CallPiece, WholeCall
from blink_server.http.wire import FinishedChoice, Used
from blink_server.text.choice_text import ShownLogprob


class _OpenAIWire:
    """What both shapes share: the envelope around `choices`, usage, the end mark."""

    prefix: str
    kind: str
    chunk_kind: str

    def __init__(self, request: TextRequest) -> None:
        self.id = f"{self.prefix}-{uuid.uuid4().hex}"
        self.continuous_usage = request.include_usage and request.continuous_usage
        self._with_logprobs = request.logprobs is not None
        self._include_usage = request.include_usage
        created = int(time.time())
        self._envelope = {
            "id": self.id,
            "object": self.kind,
            "created": created,
            "model": request.model,
        }
        head = json.dumps({**self._envelope, "object": self.chunk_kind})[:-1]
        self._head = sse.PREFIX + f'{head}, "choices": ['.encode()
        self._tail = (b'], "usage": null}' if self._include_usage else b"]}") + sse.SUFFIX

    def _chunk(self, choice: bytes, used: Used | None = None) -> bytes:
        if used is None:
            return self._head + choice + self._tail
        usage = json.dumps(used.openai()).encode()
        return self._head + choice + b'], "usage": ' + usage + b"}" + sse.SUFFIX

    def closing(self, used: Used) -> bytes:
        return (self._chunk(b"", used) if self._include_usage else b"") + sse.DONE

    def failure(self, error: ErrorReply) -> bytes:
        return sse.frame(error.body()) + sse.DONE

    def _body(self, choices: list[dict[str, Any]], used: Used) -> bytes:
        return json.dumps({**self._envelope, "choices": choices, "usage": used.openai()}).encode()


class ChatWire(_OpenAIWire):
    """chat.completion and chat.completion.chunk."""

    operation = "chat"
    prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def opening(self, echoes: Sequence[str], used: Used) -> bytes:
        delta = b'{"role": "assistant", "content": ""}'
        return b"".join(self._chunk(_chat_choice(index, delta)) for index in range(len(echoes)))

    def events(self, delta: Delta, used: Used | None) -> bytes:
        events = b""
        if delta.text or delta.logprobs:
            content = b'{"content": ' + encode_basestring(delta.text).encode() + b"}"
            events = self._chunk(
                _chat_choice(delta.index, content, self._logprobs(delta.logprobs)), used
            )
        if delta.calls:
            calls = json.dumps({"tool_calls": [_call_piece(piece) for piece in delta.calls]})
            events += self._chunk(_chat_choice(delta.index, calls.encode()), used)
        if delta.finish_reason is not None:
            choice = _chat_choice(delta.index, b"{}", None, delta.finish_reason)
            events += self._chunk(choice, used)
        return events

    def response(self, choices: Sequence[FinishedChoice], used: Used) -> bytes:
        rows = [
            {
                "index": choice.index,
                "message": _message(choice),
                "logprobs": self._logprobs(choice.logprobs),
                "finish_reason": choice.finish_reason,
            }
            for choice in choices
        ]
        return self._body(rows, used)

    def _logprobs(self, shown: Sequence[ShownLogprob]) -> dict[str, Any] | None:
        return chat_logprobs(shown) if self._with_logprobs else None


class CompletionWire(_OpenAIWire):
    """text_completion, whole and in chunks."""

    operation = "text_completion"
    prefix, kind, chunk_kind = "cmpl", "text_completion", "text_completion"

    def opening(self, echoes: Sequence[str], used: Used) -> bytes:
        return b"".join(
            self._chunk(_completion_choice(index, echo, _NO_ENDING))
            for index, echo in enumerate(echoes)
            if echo
        )

    def events(self, delta: Delta, used: Used | None) -> bytes:
        logprobs = completion_logprobs(delta.logprobs) if delta.logprobs else None
        ending = _ending(logprobs, delta.finish_reason)
        return self._chunk(_completion_choice(delta.index, delta.text, ending), used)

    def response(self, choices: Sequence[FinishedChoice], used: Used) -> bytes:
        rows = [
            {
                "index": choice.index,
                "text": choice.text,
                "logprobs": completion_logprobs(choice.logprobs) if self._with_logprobs else None,
                "finish_reason": choice.finish_reason,
            }
            for choice in choices
        ]
        return self._body(rows, used)


def _message(choice: FinishedChoice) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
    if choice.calls:
        message["content"] = choice.text or None
        message["tool_calls"] = [tool_call(call) for call in choice.calls]
    return message


def tool_call(call: WholeCall) -> dict[str, Any]:
    """A call as chat messages write it."""
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _call_piece(piece: CallPiece) -> dict[str, Any]:
    if piece.id is None:
        return {"index": piece.index, "function": {"arguments": piece.arguments}}
    return {
        "index": piece.index,
        "id": piece.id,
        "type": "function",
        "function": {"name": piece.name, "arguments": piece.arguments},
    }


_NO_ENDING = b', "logprobs": null, "finish_reason": null}'


def _chat_choice(
    index: int,
    delta: bytes,
    logprobs: dict[str, Any] | None = None,
    finish_reason: str | None = None,
) -> bytes:
    return b'{"index": %d, "delta": ' % index + delta + _ending(logprobs, finish_reason)


def _completion_choice(index: int, text: str, ending: bytes) -> bytes:
    return b'{"index": %d, "text": ' % index + encode_basestring(text).encode() + ending


def _ending(logprobs: dict[str, Any] | None, finish_reason: str | None) -> bytes:
    if logprobs is None and finish_reason is None:
        return _NO_ENDING
    fields = json.dumps({"logprobs": logprobs, "finish_reason": finish_reason})
    return f", {fields[1:]}".encode()
