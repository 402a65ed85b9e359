"""Prometheus metrics of the HTTP side, under the names that people already chart.

vLLM's (`vllm:`), OpenTelemetry's (`gen_ai_server_`) and Triton's (`nv_inference_`). A worker counts
in its own memory; `shared_metrics` adds the workers up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
)
from prometheus_client.core import Metric

from blink_server.backend import RequestTiming
from blink_server.http.gap_histogram import GapHistogram
from blink_server.http.shared_metrics import SharedMetrics

if TYPE_CHECKING:
    from blink_server.http.tracing import Tracer

# When one worker began to count says nothing of all.
disable_created_metrics()  # type: ignore[no-untyped-call]

_SHORT = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10)
_LONG = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640, 1280)
_MODEL = ("model_name",)
_OTEL = ("gen_ai_request_model", "gen_ai_operation_name")
_TRITON = ("model", "version")


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRequest:
    """One choice that has ended. Times are nanoseconds of CLOCK_MONOTONIC in this worker.

    `operation`: "chat" or "text_completion". `outcome`: "stop", "length", "abort" (the client went
    away) or "error". `timing`: the scheduler's time stamps, None where the end was not waited for.
    """

    model: str
    version: int
    operation: str
    outcome: str
    prompt_tokens: int
    generated_tokens: int
    received_ns: int
    first_token_ns: int | None
    finished_ns: int
    timing: RequestTiming | None
    submitted_ns: int = 0
    request_id: str = ""
    trace_id: str = ""


class Metrics:
    """What one worker counts.

    `directory`: where the workers of one run of the server meet; without it, or until `start`, a
    worker tells of itself alone.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._registry = CollectorRegistry()
        self._directory = directory
        self._shared: SharedMetrics | None = None
        self.tracer: Tracer | None = None  # where requests are traced
        self.on_finished: Callable[[FinishedRequest], None] = lambda _: None
        self._define_gauges_and_counters()
        self._define_histograms()

    def _define_gauges_and_counters(self) -> None:
        def counter(name: str, text: str, labels: tuple[str, ...]) -> Counter:
            return Counter(name, text, labels, registry=self._registry)

        def gauge(name: str, text: str, labels: tuple[str, ...]) -> Gauge:
            return Gauge(name, text, labels, registry=self._registry)

        self._running = gauge(
            "vllm:num_requests_running", "Requests that have given a token", _MODEL
        )
        self._waiting = gauge("vllm:num_requests_waiting", "Requests without a token yet", _MODEL)
        self._prompt = counter("vllm:prompt_tokens", "Prompt tokens", _MODEL)
        self._generated = counter("vllm:generation_tokens", "Generated tokens", _MODEL)
        self._ended = counter(
            "vllm:request_success", "Requests ended, by reason", (*_MODEL, "finished_reason")
        )
        # Triton's counters have no _total suffix, which the library's Counter would add.
        self._nv_success = gauge("nv_inference_request_success", "Requests served", _TRITON)
        self._nv_failure = gauge(
            "nv_inference_request_failure", "Requests failed", (*_TRITON, "reason")
        )
        self._nv_queue = gauge(
            "nv_inference_queue_duration_us", "Time in queue, cumulative", _TRITON
        )
        self._nv_duration = gauge(
            "nv_inference_request_duration_us", "Time of requests served", _TRITON
        )
        self._last = gauge(
            "blink_last_inference_ms", "When a request was last served, Unix time", _TRITON
        )
        self._responses = counter(
            "blink_http_responses", "HTTP responses begun", ("method", "route", "status")
        )

    def _define_histograms(self) -> None:
        def seconds(
            name: str, text: str, buckets: tuple[float, ...], labels: tuple[str, ...] = _MODEL
        ) -> Histogram:
            return Histogram(
                f"{name}_seconds", text, labels, buckets=buckets, registry=self._registry
            )

        self._first_token = seconds("vllm:time_to_first_token", "Time to first token", _LONG)
        self._between = GapHistogram(
            *("vllm:inter_token_latency_seconds", "Time between tokens", "model_name"),
            buckets=_SHORT,
            registry=self._registry,
        )
        self._per_token = seconds(
            "vllm:request_time_per_output_token", "Mean time per token after the first", _SHORT
        )
        self._whole = seconds("vllm:e2e_request_latency", "Time from request to end", _LONG)
        self._queue = seconds("vllm:request_queue_time", "Time waiting for a row", _LONG)
        self._prefill = seconds("vllm:request_prefill_time", "Time in prefill", _LONG)
        self._decode = seconds("vllm:request_decode_time", "Time in decode", _LONG)
        self._otel_whole = seconds(
            "gen_ai_server_request_duration", "Time from request to end", _LONG, _OTEL
        )
        self._otel_first = seconds(
            "gen_ai_server_time_to_first_token", "Time to first token", _LONG, _OTEL
        )
        self._otel_per_token = seconds(
            "gen_ai_server_time_per_output_token",
            "Mean time per token after the first",
            _SHORT,
            _OTEL,
        )

    def submitted(self, model: str) -> None:
        """A choice has its slot."""
        self._waiting.labels(model).inc()

    def first_token(self, model: str) -> None:
        """A submitted choice has given its first token."""
        self._waiting.labels(model).dec()
        self._running.labels(model).inc()

    def tokens_after(self, model: str) -> Callable[[float], None]:
        """What to tell, whenever tokens come, how many seconds a token after those before them."""
        return self._between.observer(model)

    def rejected(self, model: str, version: int) -> None:
        """A request found no slot."""
        self._nv_failure.labels(model, str(version), "REJECTED").inc()

    def responded(self, method: str, route: str, status: int) -> None:
        """An HTTP response has begun."""
        self._responses.labels(method, route, str(status)).inc()

    def observe_finished(self, finished: FinishedRequest) -> None:
        """A submitted choice has ended, in whatever way; `on_finished` hears of it too."""
        self._count_finished(finished)
        self.on_finished(finished)

    def _count_finished(self, finished: FinishedRequest) -> None:
        model, triton = finished.model, (finished.model, str(finished.version))
        (self._waiting if finished.first_token_ns is None else self._running).labels(model).dec()
        self._prompt.labels(model).inc(finished.prompt_tokens)
        self._generated.labels(model).inc(finished.generated_tokens)
        self._ended.labels(model, finished.outcome).inc()
        if finished.outcome in ("stop", "length"):
            self._nv_success.labels(*triton).inc()
            microseconds = (finished.finished_ns - finished.received_ns) / 1e3
            self._nv_duration.labels(*triton).inc(microseconds)
            self._last.labels(*triton).set(time.time() * 1e3)
        else:
            reason = "CANCELED" if finished.outcome == "abort" else "BACKEND"
            self._nv_failure.labels(*triton, reason).inc()
        self._observe_client_side(finished)
        if finished.timing is not None:
            self._observe_scheduler_side(model, triton, finished.timing)

    def _observe_client_side(self, finished: FinishedRequest) -> None:
        model, otel = finished.model, (finished.model, finished.operation)
        whole = (finished.finished_ns - finished.received_ns) / 1e9
        # Who sees a slow bucket finds one of its requests in the logs and traces.
        told = {"request_id": finished.request_id, "trace_id": finished.trace_id}
        exemplar = {name: value for name, value in told.items() if value} or None
        self._whole.labels(model).observe(whole, exemplar)
        self._otel_whole.labels(*otel).observe(whole)
        if finished.first_token_ns is None:
            return
        first = (finished.first_token_ns - finished.received_ns) / 1e9
        self._first_token.labels(model).observe(first, exemplar)
        self._otel_first.labels(*otel).observe(first)
        if finished.generated_tokens > 1:
            per_token = (whole - first) / (finished.generated_tokens - 1)
            self._per_token.labels(model).observe(per_token)
            self._otel_per_token.labels(*otel).observe(per_token)

    def _observe_scheduler_side(
        self, model: str, triton: tuple[str, str], timing: RequestTiming
    ) -> None:
        # Only differences of the scheduler's own stamps: its clock may be another machine's.
        if timing.prefill_ns:
            queued = timing.prefill_ns - timing.claimed_ns
            self._queue.labels(model).observe(queued / 1e9)
            self._nv_queue.labels(*triton).inc(queued / 1e3)
        if timing.first_token_ns:
            self._prefill.labels(model).observe((timing.first_token_ns - timing.prefill_ns) / 1e9)
            self._decode.labels(model).observe((timing.finished_ns - timing.first_token_ns) / 1e9)

    async def start(self) -> None:
        """Meet the other workers. Raises OSError."""
        if self._directory is not None:
            shared = SharedMetrics(self._registry.collect, self._directory)
            await shared.start()
            self._shared = shared

    def close(self) -> None:
        """Leave this worker's counts to the others."""
        if self._shared is not None:
            self._shared.close()

    async def families(self) -> Iterable[Metric]:
        """All workers' values."""
        if self._shared is None:
            return self._registry.collect()
        return await self._shared.families()

    async def triton_totals(self) -> dict[tuple[str, str, str], float]:
        """All workers' values of the metrics that have a model and a version, by name and these."""
        totals: dict[tuple[str, str, str], float] = {}
        for family in await self.families():
            for sample in family.samples:
                if {"model", "version"} <= sample.labels.keys():
                    key = sample.name, sample.labels["model"], sample.labels["version"]
                    totals[key] = totals.get(key, 0.0) + sample.value
        return totals
