"""Prometheus metrics of the HTTP side, under the names that people already chart.

vLLM's (`vllm_metrics`), OpenTelemetry's (`gen_ai_metrics`) and Triton's (`triton_metrics`). A
worker counts in its own memory; `shared_metrics` adds the workers up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, disable_created_metrics
from prometheus_client.core import Metric

from blink_server.finished_request import FinishedRequest
from blink_server.http.gen_ai_metrics import GenAiMetrics
from blink_server.http.shared_metrics import SharedMetrics
from blink_server.http.triton_metrics import TritonMetrics
from blink_server.http.vllm_metrics import VllmMetrics

if TYPE_CHECKING:
    from blink_server.http.tracing import Tracer

# When one worker began to count says nothing of all.
disable_created_metrics()  # type: ignore[no-untyped-call]


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
        self._vllm = VllmMetrics(self._registry)
        self._gen_ai = GenAiMetrics(self._registry)
        self._triton = TritonMetrics(self._registry)
        self._responses = Counter(
            "blink_http_responses",
            "HTTP responses begun",
            ("method", "route", "status"),
            registry=self._registry,
        )
        self.submitted = self._vllm.submitted
        self.first_token = self._vllm.first_token
        self.tokens_after = self._vllm.tokens_after
        self.request_ended = self._vllm.request_ended
        self.rejected = self._triton.rejected

    def responded(self, method: str, route: str, status: int) -> None:
        """An HTTP response has begun."""
        self._responses.labels(method, route, str(status)).inc()

    def observe_finished(self, finished: FinishedRequest) -> None:
        """A submitted choice has ended, in whatever way; `on_finished` hears of it too.

        On an event loop it is counted when the loop comes round: after its last tokens were sent.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._count_finished(finished)
        else:
            loop.call_soon(self._count_finished, finished)

    def _count_finished(self, finished: FinishedRequest) -> None:
        self._vllm.finished(finished)
        self._gen_ai.finished(finished)
        self._triton.finished(finished)
        self.on_finished(finished)

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
