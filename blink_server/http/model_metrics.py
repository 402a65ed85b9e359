"""Metrics of the versions' states and loads, read from the catalog when somebody asks."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from blink_server.http.models import ModelDirectory
from blink_server.repository.harness import State


class ModelCollector(Collector):
    """For each version its state, as 1 of all states, and the time of its last load."""

    def __init__(self, directory: ModelDirectory) -> None:
        self._directory = directory

    def collect(self) -> Iterator[Metric]:
        """Two families, in order of models and versions."""
        states = GaugeMetricFamily(
            "blink_model_state", "1 for the state it is in", labels=("model", "version", "state")
        )
        loads = GaugeMetricFamily(
            "nv_model_load_duration_secs", "Time of the last load", labels=("model", "version")
        )
        for entry in self._directory.entries:
            labels = entry.version.model, str(entry.version.version)
            for state in State:
                states.add_metric((*labels, str(state)), float(entry.state is state))
            if entry.load_seconds:
                loads.add_metric(labels, entry.load_seconds)
        yield states
        yield loads


def render(directory: ModelDirectory) -> bytes:
    """The versions' metrics in Prometheus's text format."""
    registry = CollectorRegistry()
    registry.register(ModelCollector(directory))
    return generate_latest(registry)
