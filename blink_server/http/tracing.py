"""Traces of requests with OpenTelemetry: one span a request, and below it what it waited for.

    chat tiny                     from the request's arrival to its end
      tokenise | queue | prefill | decode | stream

Queue, prefill and decode are the scheduler's own time stamps, whose clock may be a GPU's; stream is
from the first token that the worker saw to the last byte. Made only where tracing is on: this
module is imported then, and nothing on the path asks for it otherwise. Spans are exported in
batches by a thread of the library; a collector that is down costs requests nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from blink_server.finished_request import FinishedRequest

_CLOSE_SECONDS = 2.0


class RequestTrace:
    """One request's span, from its arrival to `end`."""

    def __init__(self, tracer: Any, span: Span, wall_offset_ns: int) -> None:
        self._tracer = tracer
        self._span = span
        self._wall_offset_ns = wall_offset_ns
        self.trace_id = format(span.get_span_context().trace_id, "032x")

    def end(self, choices: Sequence[FinishedRequest], error: str | None) -> None:
        """Everything of it has ended. `error`: what its client was told, if it failed."""
        now = time.monotonic_ns()
        for choice in choices:
            self._trace_choice(choice, now)
        span = self._span
        span.set_attribute("gen_ai.usage.input_tokens", sum(c.prompt_tokens for c in choices))
        span.set_attribute("gen_ai.usage.output_tokens", sum(c.generated_tokens for c in choices))
        span.set_attribute("gen_ai.response.finish_reasons", [c.outcome for c in choices])
        if choices:
            span.set_attribute("gen_ai.response.model", f"{choices[0].model}:{choices[0].version}")
        if error is not None:
            span.set_status(Status(StatusCode.ERROR, error))
        span.end(now + self._wall_offset_ns)

    def _trace_choice(self, choice: FinishedRequest, now: int) -> None:
        self._child("tokenise", choice, choice.received_ns, choice.submitted_ns)
        timing = choice.timing
        if timing is not None and timing.first_token_ns:
            offset, error = clock_offset(choice)
            stages = (
                ("queue", timing.claimed_ns, timing.prefill_ns),
                ("prefill", timing.prefill_ns, timing.first_token_ns),
                ("decode", timing.first_token_ns, timing.finished_ns),
            )
            for name, start, end in stages:
                self._child(name, choice, start + offset, end + offset, error)
        if choice.first_token_ns is not None:
            self._child("stream", choice, choice.first_token_ns, now)

    def _child(
        self, name: str, choice: FinishedRequest, start_ns: int, end_ns: int, error_ns: int = 0
    ) -> None:
        span = self._tracer.start_span(
            name,
            set_span_in_context(self._span, Context()),
            attributes={
                "blink.request_id": choice.request_id,
                "blink.clock_error_seconds": error_ns / 1e9,
            },
            start_time=start_ns + self._wall_offset_ns,
        )
        span.end(end_ns + self._wall_offset_ns)


def clock_offset(choice: FinishedRequest) -> tuple[int, int]:
    """What to add to the scheduler's time stamps of a choice to get ours, and how far that is off.

    Nanoseconds. It was claimed after it was submitted, and its first token and its end were seen
    after they happened; so the offset lies between two bounds. Where zero does, both clocks are
    taken for one.
    """
    timing = choice.timing
    assert timing is not None
    least = choice.submitted_ns - timing.claimed_ns
    most = choice.finished_ns - timing.finished_ns
    if choice.first_token_ns is not None:
        most = min(most, choice.first_token_ns - timing.first_token_ns)
    if least <= 0 <= most:
        return 0, 0
    return most, most - least  # news travels fast: the upper bound is the nearer


class Tracer:
    """Begins the traces of one worker."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("blink_server")
        self._propagator = TraceContextTextMapPropagator()

    def begin(
        self,
        *,
        traceparent: str | None,
        request_id: str,
        operation: str,
        model: str,
        received_ns: int,
    ) -> RequestTrace:
        """A request came at `received_ns`, CLOCK_MONOTONIC; `traceparent` is its header.

        `request_id`: what its `X-Request-Id` says.
        """
        carrier = {} if traceparent is None else {"traceparent": traceparent}
        wall_offset_ns = time.time_ns() - time.monotonic_ns()
        span = self._tracer.start_span(
            f"{operation} {model}",
            self._propagator.extract(carrier, Context()),
            kind=SpanKind.SERVER,
            attributes={
                "gen_ai.operation.name": operation,
                "gen_ai.provider.name": "blink",
                "gen_ai.request.model": model,
                "blink.request_id": request_id,
            },
            start_time=received_ns + wall_offset_ns,
        )
        return RequestTrace(self._tracer, span, wall_offset_ns)

    def close(self) -> None:
        """Export what is left, for two seconds at most. It blocks."""
        # The library waits for a collector that hangs as long as its exporter does.
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(_CLOSE_SECONDS)


def otlp_tracer(endpoint: str, version: str) -> Tracer:
    """A tracer that exports to an OTLP collector over HTTP; `endpoint`: its base URL."""
    resource = Resource.create({"service.name": "blink-server", "service.version": version})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces", timeout=5)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Tracer(provider)
