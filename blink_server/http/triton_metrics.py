"""Metrics of requests under Triton's names: counters in microseconds, by model and version.

To Triton a choice is a request that is not batched, so that requests, inferences and executions are
as many. A request's time is that of its input (until it has its slot), of the queue, of inference
(from its first prefill to its end) and of its output (the rest).
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Gauge, Histogram

from blink_server.finished_request import FinishedRequest

_LABELS = ("model", "version")
_STAGES = ("queue", "compute_input", "compute_infer", "compute_output")
_FIRST_MS = (100, 500, 2000, 5000)

LAST_INFERENCE = "blink_last_inference_timestamp_seconds"


class _Counter(Gauge):
    """Triton's counters have no suffix _total, which the library's Counter would add."""

    _type = "unknown"  # OpenMetrics knows no counters without it


class TritonMetrics:
    """What Triton tells of requests."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> _Counter:
            return _Counter(f"nv_inference_{name}", text, (*_LABELS, *labels), registry=registry)

        self._success = counter("request_success", "Requests served")
        self._failure = counter("request_failure", "Requests failed", "reason")
        self._counts = [
            counter("count", "Inferences performed"),
            counter("exec_count", "Executions; every request is one of its own"),
        ]
        self._duration = counter("request_duration_us", "Time of requests served, cumulative")
        self._stages = {
            stage: counter(f"{stage}_duration_us", f"Time in {stage} of those, cumulative")
            for stage in _STAGES
        }
        self._first = Histogram(
            "nv_inference_first_response_histogram_ms",
            "Time to first token",
            _LABELS,
            buckets=_FIRST_MS,
            registry=registry,
        )
        self._last = Gauge(
            LAST_INFERENCE,
            "When a request was last served, Unix time",
            _LABELS,
            registry=registry,
        )

    def rejected(self, model: str, version: int) -> None:
        """A request found no slot."""
        self._failure.labels(model, str(version), "REJECTED").inc()

    def finished(self, finished: FinishedRequest) -> None:
        """A submitted choice has ended."""
        labels = finished.model, str(finished.version)
        if not finished.succeeded:
            reason = "CANCELED" if finished.outcome == "abort" else "BACKEND"
            self._failure.labels(*labels, reason).inc()
            return
        for counter in (self._success, *self._counts):
            counter.labels(*labels).inc()
        self._duration.labels(*labels).inc(finished.seconds * 1e6)
        for stage, nanoseconds in _stages(finished):
            self._stages[stage].labels(*labels).inc(nanoseconds / 1e3)
        if (first := finished.first_token_seconds) is not None:
            self._first.labels(*labels).observe(first * 1e3)
        self._last.labels(*labels).set(time.time())


def _stages(finished: FinishedRequest) -> Iterator[tuple[str, int]]:
    """Nanoseconds of each stage; without a scheduler's time stamps all but the input is inference.

    Of the scheduler's stamps only differences are used: its clock may be another machine's.
    """
    left = finished.finished_ns - finished.received_ns
    timing, known = finished.timing, {}
    if finished.submitted_ns:
        known["compute_input"] = finished.submitted_ns - finished.received_ns
    if timing is not None and timing.prefill_ns:
        known["queue"] = timing.prefill_ns - timing.claimed_ns
        known["compute_infer"] = timing.finished_ns - timing.prefill_ns
    for stage, nanoseconds in known.items():
        yield stage, nanoseconds
        left -= nanoseconds
    rest = "compute_output" if "compute_infer" in known else "compute_infer"
    yield rest, max(left, 0)
