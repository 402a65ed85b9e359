"""Metrics as text: OpenMetrics, with exemplars, for those who accept it, else Prometheus's form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

_OPENMETRICS = "application/openmetrics-text"
_VERSION = "1.0.0"


def expose(families: Sequence[Metric], accept: str) -> tuple[bytes, str]:
    """The text and its content type; `accept`: the request's header."""
    collected = _Collected(families)
    if _OPENMETRICS not in accept:
        return generate_latest(collected), CONTENT_TYPE_LATEST
    # No name here needs escaping; the encoder's own would spoil samples whose names have colons.
    text = openmetrics.generate_latest(collected, openmetrics.ALLOWUTF8, _VERSION)  # type: ignore[no-untyped-call]
    return text, f"{_OPENMETRICS}; version={_VERSION}; charset=utf-8"


class _Collected(Collector):
    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """As they were given."""
        return iter(self._metrics)
