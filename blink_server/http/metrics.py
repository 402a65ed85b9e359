"""Prometheus metrics of the HTTP side, under the names that people already chart.

vLLM's (`vllm:`), OpenTelemetry's (`gen_ai_server_`) and Triton's (`nv_inference_`). With
PROMETHEUS_MULTIPROC_DIR set before this module is imported, every worker writes its values to
files there and any worker's /metrics shows the sum; `worker_exited` takes a dead worker's live
gauges back. The directory belongs to one run of the server, so that nothing stale is counted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from blink_server.backend import RequestTiming

CONTENT_TYPE = CONTENT_TYPE_LATEST
DIRECTORY_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"

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


class Metrics:
    """What one worker counts. `registry`: where to register; a fresh one if not given."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._registry = registry or CollectorRegistry()
        self._define_gauges_and_counters()
        self._define_histograms()

    def _define_gauges_and_counters(self) -> None:
        def counter(name: str, text: str, labels: tuple[str, ...]) -> Counter:
            return Counter(name, text, labels, registry=self._registry)

        def gauge(name: str, text: str, labels: tuple[str, ...], mode: str) -> Gauge:
            return Gauge(
                name,
                text,
                labels,
                registry=self._registry,
                multiprocess_mode=mode,  # type: ignore[arg-type]
            )

        self._running = gauge(
            "vllm:num_requests_running", "Requests that have given a token", _MODEL, "livesum"
        )
        self._waiting = gauge(
            "vllm:num_requests_waiting", "Requests without a token yet", _MODEL, "livesum"
        )
        self._prompt = counter("vllm:prompt_tokens", "Prompt tokens", _MODEL)
        self._generated = counter("vllm:generation_tokens", "Generated tokens", _MODEL)
        self._ended = counter(
            "vllm:request_success", "Requests ended, by reason", (*_MODEL, "finished_reason")
        )
        # Triton's counters have no _total suffix, which the library's Counter would add.
        self._nv_success = gauge("nv_inference_request_success", "Requests served", _TRITON, "sum")
        self._nv_failure = gauge(
            "nv_inference_request_failure", "Requests failed", (*_TRITON, "reason"), "sum"
        )
        self._nv_queue = gauge(
            "nv_inference_queue_duration_us", "Time in queue, cumulative", _TRITON, "sum"
        )
        self._nv_duration = gauge(
            "nv_inference_request_duration_us", "Time of requests served", _TRITON, "sum"
        )
        self._last = gauge(
            "blink_last_inference_ms", "When a request was last served, Unix time", _TRITON, "max"
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
        self._between = seconds("vllm:inter_token_latency", "Time between tokens", _SHORT)
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
        # Looking labels up for each token would cost as much as decoding it.
        return self._between.labels(model).observe

    def rejected(self, model: str, version: int) -> None:
        """A request found no slot."""
        self._nv_failure.labels(model, str(version), "REJECTED").inc()

    def responded(self, method: str, route: str, status: int) -> None:
        """An HTTP response has begun."""
        self._responses.labels(method, route, str(status)).inc()

    def observe_finished(self, finished: FinishedRequest) -> None:
        """A submitted choice has ended, in whatever way."""
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
        self._whole.labels(model).observe(whole)
        self._otel_whole.labels(*otel).observe(whole)
        if finished.first_token_ns is None:
            return
        first = (finished.first_token_ns - finished.received_ns) / 1e9
        self._first_token.labels(model).observe(first)
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

    def render(self) -> bytes:
        """All workers' values in Prometheus's text format; only this one's without a directory."""
        return generate_latest(self._all_workers())

    def triton_totals(self) -> dict[tuple[str, str, str], float]:
        """All workers' values of the metrics that have a model and a version, by name and these."""
        totals: dict[tuple[str, str, str], float] = {}
        for family in self._all_workers().collect():
            for sample in family.samples:
                if {"model", "version"} <= sample.labels.keys():
                    key = sample.name, sample.labels["model"], sample.labels["version"]
                    totals[key] = totals.get(key, 0.0) + sample.value
        return totals

    def _all_workers(self) -> CollectorRegistry:
        if DIRECTORY_VARIABLE not in os.environ:
            return self._registry
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return registry


def worker_exited(pid: int) -> None:
    """Forget a dead worker's live gauges; its counters stay in the sums. For the parent process."""
    if DIRECTORY_VARIABLE in os.environ:
        mark_process_dead(pid)  # type: ignore[no-untyped-call]
