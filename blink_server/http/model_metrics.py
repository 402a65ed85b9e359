"""Metrics of the versions' states and loads, read from the catalog when somebody asks."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from blink_server.http.models import ModelDirectory
from blink_server.repository.harness import State


def model_families(directory: ModelDirectory) -> Iterator[Metric]:
    """For each version its state, as 1 of all states, and the time of its last load."""
    states = GaugeMetricFamily(
        "blink_model_state", "1 for the state it is in", labels=("model", "version", "state")
    )
    loads = GaugeMetricFamily(
        "nv_model_load_duration_secs", "Time of the last load", labels=("model", "version")
    )
    for entry in directory.entries:
        labels = entry.version.model, str(entry.version.version)
        for state in State:
            states.add_metric((*labels, str(state)), float(entry.state is state))
        if entry.load_seconds:
            loads.add_metric(labels, entry.load_seconds)
    yield states
    yield loads
