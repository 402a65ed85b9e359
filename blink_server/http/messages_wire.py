"""Anthropic's "message" object, whole and as its typed events, and its errors."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import Any

from blink_server.http import sse
from blink_server.http.choice import Delta
from blink_server.http.errors import ErrorReply, anthropic_body
from blink_server.http.openai_requests import ChatRequest
from blink_server.http.tool_calls import CallPiece
from blink_server.http.wire import FinishedChoice, Used

_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class MessagesWire:
    """One message. Text becomes a text block, every call a tool_use block."""

    operation = "chat"
    continuous_usage = False

    def __init__(self, request: ChatRequest) -> None:
        self.id = f"msg_{uuid.uuid4().hex}"
        self._envelope = {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": request.model,
        }
        self._blocks = 0
        self._kind = ""  # of the block that is open
        self._called = False
        self._reason: dict[str, Any] = {}

    def opening(self, echoes: Sequence[str], used: Used) -> bytes:
        message: dict[str, Any] = {
            **self._envelope,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": used.prompt, "output_tokens": 0},
        }
        return _event("message_start", message=message)

    def events(self, delta: Delta, used: Used | None) -> bytes:
        events = self._text(delta.text) if delta.text else b""
        events += b"".join(map(self._call, delta.calls))
        if delta.finish_reason is not None:
            self._reason = self._ended(delta.finish_reason, delta.stop_string)
            events += self._stop()
        return events

    def closing(self, used: Used) -> bytes:
        usage = {"output_tokens": used.generated}
        return _event("message_delta", delta=self._reason, usage=usage) + _event("message_stop")

    def failure(self, error: ErrorReply) -> bytes:
        return sse.frame(anthropic_body(error), "error")

    def response(self, choices: Sequence[FinishedChoice], used: Used) -> bytes:
        [choice] = choices
        content: list[dict[str, Any]] = []
        if choice.text:
            content.append({"type": "text", "text": choice.text})
        for call in choice.calls:
            block = _tool_use(call.id, call.name)
            content.append({**block, "input": _input(call.arguments)})
        self._called = bool(choice.calls)
        message = {
            **self._envelope,
            "content": content,
            **self._ended(choice.finish_reason, choice.stop_string),
            "usage": {"input_tokens": used.prompt, "output_tokens": used.generated},
        }
        return json.dumps(message).encode()

    def _ended(self, finish_reason: str, stop_string: str | None) -> dict[str, Any]:
        reason = _REASONS[finish_reason]
        if self._called and finish_reason == "stop":
            reason = "tool_use"
        elif stop_string is not None:
            reason = "stop_sequence"
        return {"stop_reason": reason, "stop_sequence": stop_string}

    def _text(self, text: str) -> bytes:
        events = b""
        if self._kind != "text":
            events = self._stop() + self._start({"type": "text", "text": ""})
        return events + self._delta({"type": "text_delta", "text": text})

    def _call(self, piece: CallPiece) -> bytes:
        events = b""
        if piece.id is not None:
            self._called = True
            events = self._stop() + self._start(_tool_use(piece.id, piece.name or ""))
        if piece.arguments:
            delta = {"type": "input_json_delta", "partial_json": piece.arguments}
            events += self._delta(delta)
        return events

    def _start(self, block: dict[str, Any]) -> bytes:
        self._kind = block["type"]
        self._blocks += 1
        return _event("content_block_start", index=self._blocks - 1, content_block=block)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._blocks - 1, delta=delta)

    def _stop(self) -> bytes:
        if not self._kind:
            return b""
        self._kind = ""
        return _event("content_block_stop", index=self._blocks - 1)


def _event(kind: str, **fields: Any) -> bytes:
    return sse.frame(json.dumps({"type": kind, **fields}).encode(), kind)


def _tool_use(call_id: str, name: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": {}}


def _input(arguments: str) -> dict[str, Any]:
    """Arguments as the object that this API wants; text that is none is kept under "text"."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"text": arguments}
