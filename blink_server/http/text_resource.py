"""One endpoint that generates text, from body to response or event stream."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

import falcon
import falcon.asgi

from blink_server.http import sse
from blink_server.http.body import read_object
from blink_server.http.choice import Delta
from blink_server.http.default_model import with_model
from blink_server.http.generation import Generation
from blink_server.http.metrics import Metrics
from blink_server.http.models import ModelDirectory
from blink_server.http.prepare import AnyRequest
from blink_server.http.scope import RequestRecord, cleanup_of, record_of
from blink_server.http.settings import ServerSettings
from blink_server.http.tool_calls import WholeCalls
from blink_server.http.wire import FinishedChoice, Wire
from blink_server.text.choice_text import ShownLogprob

if TYPE_CHECKING:
    from blink_server.http.tracing import RequestTrace

MOST_LOGGED = 200  # characters of what a client may write into the access log


class TextAnswers:
    """Answers validated requests for text, whole or as a stream."""

    def __init__(
        self, directory: ModelDirectory, settings: ServerSettings, metrics: Metrics
    ) -> None:
        self._directory = directory
        self._settings = settings
        self._metrics = metrics

    async def answer(
        self,
        req: falcon.asgi.Request,
        resp: falcon.asgi.Response,
        request: AnyRequest,
        wire: Wire,
        *,
        received_ns: int,
    ) -> None:
        """Serve one request. Until the first delta is there an error is an HTTP error.

        `received_ns`: when it came, CLOCK_MONOTONIC.
        """
        tracer = self._metrics.tracer
        trace = None
        if tracer is not None:
            trace = tracer.begin(
                traceparent=req.get_header("traceparent"),
                request_id=record_of(req).request_id,
                operation=wire.operation,
                model=request.model[:MOST_LOGGED],
                received_ns=received_ns,
            )
        generation = Generation(
            self._directory,
            request,
            self._metrics,
            request_id=wire.id,
            operation=wire.operation,
            received_ns=received_ns,
            settings=self._settings,
            trace_id="" if trace is None else trace.trace_id,
        )
        record = record_of(req)
        record.model, record.user = request.model[:MOST_LOGGED], (request.user or "")[:MOST_LOGGED]
        record.stream = request.stream
        cleanup_of(req).callback(_end, generation, record, trace)
        await generation.start()
        deltas = generation.deltas()
        if request.stream:
            first = await anext(deltas)
            sse.respond(resp, _stream(generation, first, deltas, wire), wire.failure)
        else:
            resp.data = await _whole(generation, deltas, wire)


class TextResource(TextAnswers, ABC):
    """Serves POST; the fields of the body and the shape on the wire are the subclass's."""

    async def on_post(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Read the body, and answer."""
        received_ns = time.monotonic_ns()
        body = await read_object(req, self._settings)
        request, wire = self._read(with_model(body, self._directory, self._settings))
        await self.answer(req, resp, request, wire, received_ns=received_ns)

    @abstractmethod
    def _read(self, body: Mapping[str, Any]) -> tuple[AnyRequest, Wire]:
        """The validated record and the serializer for its answer. Raises `InvalidRequest`."""


def _end(generation: Generation, record: RequestRecord, trace: RequestTrace | None) -> None:
    generation.close()
    record.prompt_tokens, record.completion_tokens = generation.used
    record.finish_reasons = [choice.outcome or "" for choice in generation.choices]
    if trace is not None:
        trace.end([c.finished for c in generation.choices if c.finished is not None], record.error)


async def _stream(
    generation: Generation, first: Delta, deltas: AsyncIterator[Delta], wire: Wire
) -> AsyncIterator[bytes]:
    """The events of a stream; each item is one delta's, to be written at once."""
    used = generation.used if wire.continuous_usage else None
    opening = wire.opening(generation.echoes, generation.used)
    yield opening + wire.events(first, used)
    async for delta in deltas:
        used = generation.used if wire.continuous_usage else None
        yield wire.events(delta, used)
    yield wire.closing(generation.used)


async def _whole(generation: Generation, deltas: AsyncIterator[Delta], wire: Wire) -> bytes:
    """The body of a response that is not streamed."""
    texts = [[echo] for echo in generation.echoes]
    shown: list[list[ShownLogprob]] = [[] for _ in texts]
    calls = [WholeCalls() for _ in texts]
    reasons = ["" for _ in texts]
    stops: list[str | None] = [None for _ in texts]
    async for delta in deltas:
        texts[delta.index].append(delta.text)
        shown[delta.index] += delta.logprobs
        calls[delta.index].add(delta.calls)
        reasons[delta.index] = delta.finish_reason or ""
        stops[delta.index] = delta.stop_string
    choices = [
        FinishedChoice(
            index,
            "".join(texts[index]),
            shown[index],
            reasons[index],
            calls[index].calls,
            stops[index],
        )
        for index in range(len(texts))
    ]
    return wire.response(choices, generation.used)
