"""POST /v1/completions, /v1/chat/completions, /v1/responses; and Anthropic's /v1/messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blink_server.http.messages_request import parse_messages
from blink_server.http.messages_wire import MessagesWire
from blink_server.http.openai_requests import parse_chat, parse_completion
from blink_server.http.openai_wire import ChatWire, CompletionWire
from blink_server.http.prepare import AnyRequest
from blink_server.http.responses_request import parse_responses
from blink_server.http.responses_wire import ResponsesWire
from blink_server.http.text_resource import TextResource
from blink_server.http.wire import Wire


class CompletionsResource(TextResource):
    """POST /v1/completions."""

    def _read(self, body: Mapping[str, Any]) -> tuple[AnyRequest, Wire]:
        request = parse_completion(body, max_n=self._settings.max_n)
        return request, CompletionWire(request)


class ChatResource(TextResource):
    """POST /v1/chat/completions."""

    def _read(self, body: Mapping[str, Any]) -> tuple[AnyRequest, Wire]:
        request = parse_chat(body, max_n=self._settings.max_n)
        return request, ChatWire(request)


class ResponsesResource(TextResource):
    """POST /v1/responses."""

    def _read(self, body: Mapping[str, Any]) -> tuple[AnyRequest, Wire]:
        request = parse_responses(body)
        return request.chat, ResponsesWire(request)


class MessagesResource(TextResource):
    """POST /v1/messages."""

    def _read(self, body: Mapping[str, Any]) -> tuple[AnyRequest, Wire]:
        request = parse_messages(body)
        return request, MessagesWire(request)
