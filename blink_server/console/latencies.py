"""Percentiles of the last minutes, from the histograms that the workers keep anyway."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client.core import Metric

HISTOGRAMS = {
    "ttft": "vllm:time_to_first_token_seconds",
    "tpot": "vllm:request_time_per_output_token_seconds",
    "e2e": "vllm:e2e_request_latency_seconds",
}
QUANTILES = (0.5, 0.95, 0.99)
WINDOW_SECONDS = 300.0

Counts = dict[float, float]  # upper bound of a bucket -> observations at or below it


class RecentLatencies:
    """Remembers what the histograms said; their growth over the window is what was recent."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: deque[tuple[float, dict[str, Counts]]] = deque()

    def observe(self, families: Iterable[Metric]) -> dict[str, dict[str, Any]]:
        """By name: `quantiles` in seconds, None where there never was anything, and `minutes`.

        Those are the window's: at least one, more than five where nobody has asked meanwhile. They
        are 0 where the quantiles are of all that the histograms have: the first time, and where
        nothing was observed in the window, since what there ever was says more than nothing.
        """
        now, counts = self._clock(), _counts(families)
        while len(self._seen) > 1 and now - self._seen[1][0] >= WINDOW_SECONDS:
            self._seen.popleft()
        begun, oldest = self._seen[0] if self._seen else (now, {})
        self._seen.append((now, counts))
        found = {}
        for name, ever in counts.items():
            grown = _growth(ever, oldest[name]) if oldest else None
            minutes = 0 if grown is None else max(1, round((now - begun) / 60))
            quantiles = [quantile(ever if grown is None else grown, q) for q in QUANTILES]
            found[name] = {"quantiles": quantiles, "minutes": minutes}
        return found


def _counts(families: Iterable[Metric]) -> dict[str, Counts]:
    """All models together."""
    counts: dict[str, Counts] = {name: {} for name in HISTOGRAMS}
    names = {f"{metric}_bucket": name for name, metric in HISTOGRAMS.items()}
    for sample in (sample for family in families for sample in family.samples):
        name = names.get(sample.name)
        if name is not None:
            bound = float(sample.labels["le"])
            counts[name][bound] = counts[name].get(bound, 0.0) + sample.value
    return counts


def _growth(now: Counts, before: Counts) -> Counts | None:
    """None: there is none."""
    grown = {bound: count - before.get(bound, 0.0) for bound, count in now.items()}
    return grown if grown.get(math.inf) else None


def quantile(counts: Counts, q: float) -> float | None:
    """The quantile `q` of a histogram, linear within a bucket as Prometheus has it."""
    bounds = sorted(counts)
    total = counts[bounds[-1]] if bounds else 0.0
    if not total:
        return None
    rank, below, start = q * total, 0.0, 0.0
    for bound in bounds:
        if counts[bound] >= rank:
            if math.isinf(bound):
                return start
            share = (rank - below) / ((counts[bound] - below) or 1.0)
            return start + share * (bound - start)
        below, start = counts[bound], bound
    return start
