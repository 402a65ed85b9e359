"""Metrics of requests by OpenTelemetry's semantic conventions for model servers.

Names, labels and buckets are those of the conventions' `gen_ai.server.*`, dots written as `_`.
"""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Histogram

from blink_server.finished_request import FinishedRequest

_DURATION = tuple(0.01 * 2**power for power in range(14))
_FIRST = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1),
    *(0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10),
)
_PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)
_LABELS = (
    "gen_ai_operation_name",
    "gen_ai_provider_name",
    "gen_ai_request_model",
    "gen_ai_response_model",
)

PROVIDER = "blink"


class GenAiMetrics:
    """What the conventions ask of a server; the latencies of tokens are those of good answers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def seconds(
            name: str, text: str, buckets: Sequence[float], labels: Sequence[str] = _LABELS
        ) -> Histogram:
            return Histogram(
                f"gen_ai_server_{name}_seconds", text, labels, buckets=buckets, registry=registry
            )

        self._duration = seconds(
            "request_duration", "Time from request to end", _DURATION, (*_LABELS, "error_type")
        )
        self._first = seconds("time_to_first_token", "Time to first token", _FIRST)
        self._per_token = seconds(
            "time_per_output_token", "Mean time per token after the first", _PER_TOKEN
        )

    def finished(self, finished: FinishedRequest) -> None:
        """A submitted choice has ended."""
        labels = (
            finished.operation,
            PROVIDER,
            finished.model,
            f"{finished.model}:{finished.version}",
        )
        error = "" if finished.succeeded else finished.outcome
        self._duration.labels(*labels, error).observe(finished.seconds)
        if not finished.succeeded:
            return
        if (first := finished.first_token_seconds) is not None:
            self._first.labels(*labels).observe(first)
        if (per_token := finished.seconds_per_token) is not None:
            self._per_token.labels(*labels).observe(per_token)
