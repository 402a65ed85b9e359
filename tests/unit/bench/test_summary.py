from __future__ import annotations

import itertools
from array import array
from dataclasses import astuple, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blink_server.bench.outcome import Outcome
from blink_server.bench.summary import (
    Objectives,
    Percentiles,
    Summary,
    Window,
    summarise,
    window_of,
)


def answer(
    scheduled: float,
    first: float,
    gap: float,
    tokens: int,
    *,
    error: str = "",
    late: float = 0.0,
    asked: int | None = None,
) -> Outcome:
    """One whose first text comes `first` seconds after its schedule, then one every `gap`."""
    outcome = Outcome(0, scheduled, 10, asked or tokens, sent=scheduled + late, error=error)
    outcome.texts = array("d", [scheduled + first + gap * n for n in range(tokens)])
    outcome.prompt_tokens, outcome.completion_tokens = 10, tokens
    return outcome


outcomes_strategy = st.lists(
    st.builds(
        answer,
        st.floats(0, 100),
        st.floats(0.001, 5),
        st.floats(0, 0.2),
        st.integers(1, 30),
        error=st.sampled_from(["", "", "http_503", "timeout"]),
    ),
    max_size=40,
)


@given(st.lists(st.floats(1e-6, 1e3), min_size=1))
def test_percentiles_are_in_order_and_among_the_values(seconds: list[float]) -> None:
    found = Percentiles.of(seconds)
    assert found is not None
    low, high = min(seconds) * 1e3, max(seconds) * 1e3
    ranks = [low, found.p50, found.p95, found.p99, found.p999, high]
    assert all(a <= b * (1 + 1e-12) for a, b in itertools.pairwise(ranks))
    assert low * (1 - 1e-9) <= found.mean <= high * (1 + 1e-9)
    assert found.count == len(seconds)


def test_percentiles_of_known_values() -> None:
    found = Percentiles.of(number / 1e3 for number in range(1001))
    assert found is not None
    assert astuple(found) == pytest.approx((1001, 500, 500, 950, 990, 999))


@given(outcomes_strategy)
def test_every_request_in_the_window_is_a_success_or_an_error(outcomes: list[Outcome]) -> None:
    window = Window(20.0, 70.0)
    summary = summarise(outcomes, window)
    assert summary.requests == sum(20 <= one.scheduled < 70 for one in outcomes)
    assert summary.succeeded + sum(summary.errors.values()) == summary.requests
    assert (summary.ttft.count if summary.ttft else 0) == summary.succeeded
    assert (summary.lateness.count if summary.lateness else 0) == summary.requests


@given(outcomes_strategy)
def test_parts_of_a_run_add_up_to_the_whole(outcomes: list[Outcome]) -> None:
    parts = [Window(start, start + 50) for start in (0.0, 50.0, 100.0, 150.0)]
    whole = summarise(outcomes, Window(0.0, 200.0))
    pieces = [summarise(outcomes, part) for part in parts]
    for rate in ("request_throughput", "output_token_throughput"):
        assert sum(getattr(one, rate) for one in pieces) / 4 == pytest.approx(getattr(whole, rate))
    good = [one for one in outcomes if one.succeeded]
    assert whole.request_throughput * 200 == pytest.approx(len(good))


@given(outcomes_strategy, st.floats(0, 10))
def test_a_generator_that_is_late_does_not_look_faster(
    outcomes: list[Outcome], late: float
) -> None:
    window = Window(0.0, 101.0)
    punctual = summarise(outcomes, window)
    later = summarise([replace(one, sent=one.sent + late) for one in outcomes], window)
    assert (later.ttft, later.e2e) == (punctual.ttft, punctual.e2e)


def test_known_figures() -> None:
    window = Window(0.0, 10.0)
    outcomes = [
        answer(1.0, 0.5, 0.1, 11),  # ends at 2.5
        answer(8.0, 1.5, 0.2, 6),  # ends at 10.5, outside; 3 tokens at 9.5, 9.7, 9.9
        answer(3.0, 0.2, 0.0, 1, asked=4),
        answer(4.0, 0.1, 0.1, 2, error="stream_error"),
        answer(12.0, 9.0, 9.0, 2),  # outside
    ]
    summary = summarise(outcomes, window, Objectives(ttft=600, tpot=150))
    assert (summary.requests, summary.succeeded) == (4, 3)
    assert summary.errors == {"stream_error": 1}
    assert summary.wrong_lengths == 1
    assert summary.ttft is not None
    assert summary.ttft.mean == pytest.approx(2200 / 3)
    assert summary.tpot is not None
    assert (summary.tpot.count, summary.tpot.mean) == (2, pytest.approx(150))
    assert summary.itl is not None
    assert (summary.itl.count, summary.itl.p50) == (15, pytest.approx(100))
    assert summary.e2e is not None
    assert summary.e2e.p50 == pytest.approx(1500)
    assert summary.request_throughput == pytest.approx(0.2)
    assert summary.output_token_throughput == pytest.approx((11 + 3 + 1) / 10)
    assert summary.goodput == pytest.approx(0.2)  # the second one's first token was too late
    assert summary.makespan_seconds == pytest.approx(29.0)
    assert summary.makespan_output_token_throughput == pytest.approx(20 / 29)


def test_tokens_that_come_together_are_shared_among_their_events() -> None:
    outcome = answer(0.0, 1.0, 1.0, 3)
    outcome.completion_tokens = 9
    assert outcome.tokens_between(0.5, 2.5) == pytest.approx(6)
    assert outcome.time_per_output_token == pytest.approx(2 / 8)


def test_nothing_in_the_window_gives_no_percentiles() -> None:
    summary: Summary = summarise([answer(5.0, 1, 1, 2)], Window(0.0, 1.0))
    assert (summary.ttft, summary.tpot, summary.itl, summary.e2e) == (None,) * 4
    assert (summary.requests, summary.request_throughput, summary.goodput) == (0, 0, None)
    assert summarise([], window_of([], 10.0, 1.0, 1.0)).requests == 0


def test_the_window_leaves_out_warm_up_and_cool_down() -> None:
    outcomes = [answer(1000.0 + second, 0.1, 0.1, 2) for second in range(10)]
    window = window_of(outcomes, 12.0, 2.0, 3.0)
    assert (window.begin, window.end) == (1002.0, 1009.0)
    assert summarise(outcomes, window).requests == 7
    closed = window_of(outcomes, None, 2.0, 0.0)
    assert (closed.begin, closed.end) == (1002.0, pytest.approx(1009.0))
    assert summarise(outcomes, closed).requests == 8
    assert window_of(outcomes, 12.0, 10.0, 5.0).seconds == 0


@pytest.mark.parametrize(
    ("objectives", "met"),
    [
        (Objectives(), True),
        (Objectives(ttft=500), True),
        (Objectives(ttft=499), False),
        (Objectives(tpot=99), False),
        (Objectives(tpot=101, e2e=1501), True),
        (Objectives(e2e=1499), False),
    ],
)
def test_objectives(objectives: Objectives, met: bool) -> None:
    assert objectives.met(answer(0.0, 0.5, 0.1, 11)) is met
    assert not objectives.met(answer(0.0, 0.5, 0.1, 11, error="timeout"))


def test_the_mean_of_many_is_numpys() -> None:
    values = np.random.default_rng(0).exponential(1, 500)
    found = Percentiles.of(values.tolist())
    assert found is not None
    assert found.p99 == pytest.approx(np.percentile(values, 99) * 1e3)
