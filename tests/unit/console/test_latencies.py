"""Percentiles of what was recent, from histograms that only grow."""

from __future__ import annotations

import math

import pytest
from prometheus_client import CollectorRegistry, Histogram

from blink_server.console.latencies import HISTOGRAMS, WINDOW_SECONDS, RecentLatencies, quantile


def test_a_quantile_is_linear_within_its_bucket() -> None:
    counts = {0.1: 0.0, 0.2: 10.0, 0.4: 20.0, math.inf: 20.0}
    assert quantile(counts, 0.25) == pytest.approx(0.15)
    assert quantile(counts, 0.75) == pytest.approx(0.3)
    assert quantile(counts, 1.0) == pytest.approx(0.4)


def test_what_is_beyond_all_buckets_is_told_as_the_last_bound() -> None:
    assert quantile({0.1: 0.0, 1.0: 0.0, math.inf: 5.0}, 0.5) == 1.0


def test_nothing_observed_has_no_quantile() -> None:
    assert quantile({0.1: 0.0, math.inf: 0.0}, 0.5) is None
    assert quantile({}, 0.5) is None


class Clocked:
    def __init__(self) -> None:
        self.now = 0.0
        self.minutes = -1
        self.registry = CollectorRegistry()
        self.histogram = Histogram(
            HISTOGRAMS["ttft"], "", ("model_name",), buckets=(0.1, 1, 10), registry=self.registry
        )
        self.latencies = RecentLatencies(lambda: self.now)

    def seen(self, *values: float, after: float = 0.0) -> float | None:
        self.now += after
        for value in values:
            self.histogram.labels("m").observe(value)
        told = self.latencies.observe(self.registry.collect())["ttft"]
        self.minutes = told["minutes"]
        median: float | None = told["quantiles"][0]
        return median


def test_the_window_leaves_old_observations_behind() -> None:
    clocked = Clocked()
    first = clocked.seen(5, 5, 5, 5)
    assert first is not None
    assert 1 < first < 10
    assert clocked.minutes == 0
    mixed = clocked.seen(0.05, after=WINDOW_SECONDS / 2)
    assert mixed is not None
    assert mixed < 0.1
    assert clocked.minutes == round(WINDOW_SECONDS / 120)
    later = clocked.seen(0.5, 0.5, after=WINDOW_SECONDS)
    assert later is not None
    assert 0.1 < later < 1
    assert clocked.minutes == round(WINDOW_SECONDS / 60)


def test_a_window_in_which_nobody_asked_is_told_as_long_as_it_is() -> None:
    clocked = Clocked()
    clocked.seen(5)
    clocked.seen(0.05, after=720)
    assert clocked.minutes == 12
    clocked.seen(0.05, after=2)
    assert clocked.minutes == 12
    clocked.seen(0.05, after=WINDOW_SECONDS - 2)
    assert clocked.minutes == 5


def test_nothing_ever_observed_is_told_as_nothing() -> None:
    clocked = Clocked()
    assert (clocked.seen(), clocked.minutes) == (None, 0)


def test_without_news_it_is_told_what_ever_was() -> None:
    clocked = Clocked()
    before = clocked.seen(5)
    assert clocked.seen(after=2 * WINDOW_SECONDS) == before
    assert clocked.minutes == 0


def test_models_count_together() -> None:
    clocked = Clocked()
    clocked.histogram.labels("other").observe(0.05)
    assert clocked.seen(0.05) == pytest.approx(0.05)
