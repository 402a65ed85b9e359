"""Metrics of the schedulers, read from the sessions' rings when somebody asks.

A scheduler's counters are the same in every worker, so whichever answers says them for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from blink_server.backend import SchedulerStats
from blink_server.http.models import ModelDirectory

_LABELS = ("model_name", "version")


class SchedulerCollector(Collector):
    """Everything `SchedulerStats` says, for each version in service."""

    def __init__(self, directory: ModelDirectory) -> None:
        self._directory = directory

    def collect(self) -> Iterator[Metric]:
        """One family a field, one sample a version."""
        found = list(self._stats())
        yield _gauge("vllm:kv_cache_usage_perc", "KV memory in use, 0 to 1", found, "kv_usage")
        yield _counter("vllm:num_preemptions", "Requests paused for others", found, "preemptions")
        yield _gauge("blink_scheduler_rows", "Requests a decode step can serve", found, "rows")
        yield _gauge("blink_scheduler_rows_used", "Requests that have a row", found, "rows_used")
        yield _gauge("blink_scheduler_waiting", "Requests waiting for a row", found, "waiting")
        yield _counter("blink_scheduler_steps", "Steps taken", found, "steps")
        yield _counter("blink_tail_launches", "Launch windows used up", found, "tail_launches")
        yield _counter("blink_launch_retries", "Launches tried again", found, "launch_retries")
        launches = CounterMetricFamily(
            "blink_graph_launches", "Graphs launched", labels=(*_LABELS, "phase")
        )
        for labels, stats in found:
            launches.add_metric((*labels, "decode"), stats.decode_launches)
            launches.add_metric((*labels, "prefill"), stats.prefill_launches)
        yield launches

    def _stats(self) -> Iterator[tuple[tuple[str, str], SchedulerStats]]:
        for entry in self._directory.entries:
            stats = entry.session.stats() if entry.session is not None else None
            if stats is not None:
                yield (entry.version.model, str(entry.version.version)), stats


def render(directory: ModelDirectory) -> bytes:
    """The schedulers' metrics in Prometheus's text format."""
    registry = CollectorRegistry()
    registry.register(SchedulerCollector(directory))
    return generate_latest(registry)


def _gauge(
    name: str, text: str, found: Iterable[tuple[tuple[str, str], SchedulerStats]], field: str
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=_LABELS)
    for labels, stats in found:
        family.add_metric(labels, getattr(stats, field))
    return family


def _counter(
    name: str, text: str, found: Iterable[tuple[tuple[str, str], SchedulerStats]], field: str
) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=_LABELS)
    for labels, stats in found:
        family.add_metric(labels, getattr(stats, field))
    return family
