"""POST /v1/completions and /v1/chat/completions, from body to response or event stream."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from typing import Any

import falcon
import falcon.asgi

from blink_server.http import sse
from blink_server.http.body import read_object
from blink_server.http.choice import Delta
from blink_server.http.generation import Generation
from blink_server.http.metrics import Metrics
from blink_server.http.models import ModelDirectory
from blink_server.http.openai_requests import parse_chat, parse_completion
from blink_server.http.prepare import AnyRequest
from blink_server.http.scope import cleanup_of
from blink_server.http.settings import ServerSettings
from blink_server.http.wire import ChatWire, CompletionWire, FinishedChoice, Wire, usage
from blink_server.text.choice_text import ShownLogprob


class TextResource(ABC):
    """One endpoint that generates text; its fields and its shape on the wire are its own."""

    operation: str

    def __init__(
        self, directory: ModelDirectory, settings: ServerSettings, metrics: Metrics
    ) -> None:
        self._directory = directory
        self._settings = settings
        self._metrics = metrics

    async def on_post(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Serve one request. Until the first delta is there an error is an HTTP error."""
        received_ns = time.monotonic_ns()
        body = await read_object(req, most_bytes=self._settings.max_body_bytes)
        request = self._parse(body)
        wire = self._wire(request)
        generation = Generation(
            self._directory,
            request,
            self._metrics,
            request_id=wire.id,
            operation=self.operation,
            received_ns=received_ns,
            retry_seconds=self._settings.retry_seconds,
        )
        cleanup_of(req).callback(generation.close)
        await generation.start()
        deltas = generation.deltas()
        if not request.stream:
            resp.data = await _whole(generation, deltas, request, wire)
            return
        first = await anext(deltas)
        resp.content_type = sse.CONTENT_TYPE
        resp.set_header("Cache-Control", "no-cache")
        # nginx would otherwise collect the events before it passes them on.
        resp.set_header("X-Accel-Buffering", "no")
        resp.stream = sse.event_stream(_frames(generation, first, deltas, request, wire))

    @abstractmethod
    def _parse(self, body: Mapping[str, Any]) -> AnyRequest:
        """The validated record. Raises `InvalidRequest`."""

    @abstractmethod
    def _wire(self, request: AnyRequest) -> Wire:
        """A serializer for this one response."""


class CompletionsResource(TextResource):
    """POST /v1/completions."""

    operation = CompletionWire.operation

    def _parse(self, body: Mapping[str, Any]) -> AnyRequest:
        return parse_completion(body, max_n=self._settings.max_n)

    def _wire(self, request: AnyRequest) -> Wire:
        return CompletionWire(
            request.model,
            include_usage=request.include_usage,
            with_logprobs=request.logprobs is not None,
        )


class ChatResource(TextResource):
    """POST /v1/chat/completions."""

    operation = ChatWire.operation

    def _parse(self, body: Mapping[str, Any]) -> AnyRequest:
        return parse_chat(body, max_n=self._settings.max_n)

    def _wire(self, request: AnyRequest) -> Wire:
        return ChatWire(
            request.model,
            include_usage=request.include_usage,
            with_logprobs=request.logprobs is not None,
        )


def _used(generation: Generation) -> dict[str, int]:
    return usage(generation.prompt_tokens, generation.completion_tokens)


async def _frames(
    generation: Generation,
    first: Delta,
    deltas: AsyncIterator[Delta],
    request: AnyRequest,
    wire: Wire,
) -> AsyncIterator[bytes]:
    """The events of a stream; each item is one delta's, to be written at once."""
    tell_usage = request.include_usage and request.continuous_usage

    def events(delta: Delta) -> bytes:
        used = _used(generation) if tell_usage else None
        return b"".join(map(sse.frame, wire.chunks(delta, used)))

    opening = b"".join(map(sse.frame, wire.opening(len(generation.choices))))
    yield opening + events(first)
    async for delta in deltas:
        yield events(delta)
    if request.include_usage:
        yield sse.frame(wire.usage_chunk(_used(generation)))


async def _whole(
    generation: Generation, deltas: AsyncIterator[Delta], request: AnyRequest, wire: Wire
) -> bytes:
    """The body of a response that is not streamed."""
    texts: list[list[str]] = [[] for _ in generation.choices]
    shown: list[list[ShownLogprob]] = [[] for _ in generation.choices]
    reasons = ["" for _ in generation.choices]
    async for delta in deltas:
        texts[delta.index].append(delta.text)
        shown[delta.index] += delta.logprobs
        reasons[delta.index] = delta.finish_reason or ""
    choices = [
        FinishedChoice(index, "".join(texts[index]), shown[index], reasons[index])
        for index in range(len(texts))
    ]
    return wire.response(choices, _used(generation))
