"""OpenAI's "response" object, whole and as its typed events."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from typing import Any

from blink_server.http import sse
from blink_server.http.choice import Delta
from blink_server.http.errors import ErrorReply
from blink_server.http.logprobs import chat_logprobs
from blink_server.http.responses_request import ResponsesRequest
from blink_server.http.tool_calls import CallPiece
from blink_server.http.wire import FinishedChoice, Used
from blink_server.text.choice_text import ShownLogprob


class ResponsesWire:
    """One response. Text becomes a message item, every call a function_call item."""

    operation = "chat"
    continuous_usage = False

    def __init__(self, request: ResponsesRequest) -> None:
        self.id = f"resp_{uuid.uuid4().hex}"
        self._with_logprobs = request.chat.logprobs is not None
        self._may_call = request.chat.tool_use is not None
        self._envelope = {
            "id": self.id,
            "object": "response",
            "created_at": int(time.time()),
            "model": request.chat.model,
            **request.repeated,
        }
        self._sequence = 0
        self._items: list[dict[str, Any]] = []
        self._open = False  # the last item is not done yet
        self._finish_reason = ""

    def opening(self, echoes: Sequence[str], used: Used) -> bytes:
        response = self._object("in_progress", None)
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def events(self, delta: Delta, used: Used | None) -> bytes:
        # Of an answer that may call, log-probabilities without text may be those of a call.
        shows = delta.text or (delta.logprobs and not self._may_call)
        events = self._text(delta.text, delta.logprobs) if shows else b""
        events += b"".join(map(self._call, delta.calls))
        if delta.finish_reason is not None:
            self._finish_reason = delta.finish_reason
            if not self._items:
                events += self._add(_message(), part=True)
            events += self._done()
        return events

    def closing(self, used: Used) -> bytes:
        status = _status(self._finish_reason)
        return self._event(f"response.{status}", response=self._object(status, used))

    def failure(self, error: ErrorReply) -> bytes:
        response = self._object("failed", None)
        response["error"] = {"code": error.code or error.type, "message": error.message}
        return self._event("response.failed", response=response)

    def response(self, choices: Sequence[FinishedChoice], used: Used) -> bytes:
        [choice] = choices
        self._finish_reason = choice.finish_reason
        if choice.text or not choice.calls:
            message = _message()
            message["content"] = [_part(choice.text, self._logprobs(choice.logprobs))]
            self._items.append(message)
        for call in choice.calls:
            self._items.append({**_function_call(call.id, call.name), "arguments": call.arguments})
        status = _status(choice.finish_reason)
        for item in self._items:
            item["status"] = status
        return json.dumps(self._object(status, used)).encode()

    def _object(self, status: str, used: Used | None) -> dict[str, Any]:
        incomplete = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            **self._envelope,
            "status": status,
            "error": None,
            "incomplete_details": incomplete,
            "output": self._items,
            "usage": None if used is None else _usage(used),
        }

    def _event(self, kind: str, **fields: Any) -> bytes:
        payload = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return sse.frame(json.dumps(payload).encode(), kind)

    def _text(self, text: str, shown: Sequence[ShownLogprob]) -> bytes:
        events = b""
        if not self._open or self._items[-1]["type"] != "message":
            events = self._done() + self._add(_message(), part=True)
        part = self._items[-1]["content"][0]
        logprobs = self._logprobs(shown)
        part["text"] += text
        part["logprobs"] += logprobs
        return events + self._event(
            "response.output_text.delta", **self._place(), delta=text, logprobs=logprobs
        )

    def _call(self, piece: CallPiece) -> bytes:
        events = b""
        if piece.id is not None:
            events = self._done() + self._add(_function_call(piece.id, piece.name or ""))
        if not piece.arguments:
            return events
        self._items[-1]["arguments"] += piece.arguments
        return events + self._event(
            "response.function_call_arguments.delta",
            item_id=self._items[-1]["id"],
            output_index=len(self._items) - 1,
            delta=piece.arguments,
        )

    def _place(self) -> dict[str, Any]:
        return {
            "item_id": self._items[-1]["id"],
            "output_index": len(self._items) - 1,
            "content_index": 0,
        }

    def _add(self, item: dict[str, Any], *, part: bool = False) -> bytes:
        index = len(self._items)
        events = self._event("response.output_item.added", output_index=index, item=item)
        self._items.append(item)
        self._open = True
        if part:
            item["content"].append(_part("", []))
            events += self._event(
                "response.content_part.added", **self._place(), part=item["content"][0]
            )
        return events

    def _done(self) -> bytes:
        """The last item is complete."""
        if not self._open:
            return b""
        self._open = False
        item, index = self._items[-1], len(self._items) - 1
        item["status"] = _status(self._finish_reason)
        if item["type"] == "message":
            part = item["content"][0]
            events = self._event(
                "response.output_text.done",
                **self._place(),
                text=part["text"],
                logprobs=part["logprobs"],
            ) + self._event("response.content_part.done", **self._place(), part=part)
        else:
            events = self._event(
                "response.function_call_arguments.done",
                item_id=item["id"],
                output_index=index,
                name=item["name"],
                arguments=item["arguments"],
            )
        return events + self._event("response.output_item.done", output_index=index, item=item)

    def _logprobs(self, shown: Sequence[ShownLogprob]) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = chat_logprobs(shown)["content"]
        return entries if self._with_logprobs else []


def _status(finish_reason: str) -> str:
    return "incomplete" if finish_reason == "length" else "completed"


def _message() -> dict[str, Any]:
    return {
        "type": "message",
        "id": f"msg_{uuid.uuid4().hex}",
        "role": "assistant",
        "status": "in_progress",
        "content": [],
    }


def _part(text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _function_call(call_id: str, name: str) -> dict[str, Any]:
    return {
        "type": "function_call",
        "id": f"fc_{uuid.uuid4().hex}",
        "call_id": call_id,
        "name": name,
        "arguments": "",
        "status": "in_progress",
    }


def _usage(used: Used) -> dict[str, Any]:
    return {
        "input_tokens": used.prompt,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": used.generated,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": used.prompt + used.generated,
    }
