"""Percentiles of the last minutes, from the histograms that the workers keep anyway."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

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

    def observe(self, families: Iterable[Metric]) -> Mapping[str, Sequence[float | None]]:
        """The quantiles of the window, in seconds, None where nothing was observed.

        The first time, the window is all that the histograms have.
        """
        now, counts = self._clock(), _counts(families)
        while len(self._seen) > 1 and now - self._seen[1][0] >= WINDOW_SECONDS:
            self._seen.popleft()
        oldest = self._seen[0][1] if self._seen else {}
        self._seen.append((now, counts))
        return {
            name: [quantile(_growth(counts[name], oldest.get(name, {})), q) for q in QUANTILES]
            for name in HISTOGRAMS
        }


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


def _growth(now: Counts, before: Counts) -> Counts:
    grown = {bound: count - before.get(bound, 0.0) for bound, count in now.items()}
    # Nothing recent: what there ever was says more than nothing.
    return grown if grown.get(math.inf) else now


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
