"""Figures of one measurement: percentiles of latencies, throughput, goodput."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from blink_server.bench.outcome import Outcome

MILLISECONDS = 1e3


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of `count` values, in milliseconds; interpolated linearly between neighbours."""

    count: int
    mean: float
    p50: float
    p95: float
    p99: float
    p999: float

    @classmethod
    def of(cls, seconds: Iterable[float]) -> Percentiles | None:
        """None of no values."""
        values = np.fromiter(seconds, np.float64) * MILLISECONDS
        if not len(values):
            return None
        ranks = np.percentile(values, (50, 95, 99, 99.9)).tolist()
        return cls(len(values), float(values.mean()), *ranks)


@dataclass(frozen=True, slots=True)
class Objectives:
    """Service-level objectives in milliseconds; those that are None are not held."""

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None

    def __bool__(self) -> bool:
        return any(limit is not None for limit in (self.ttft, self.tpot, self.e2e))

    def met(self, outcome: Outcome) -> bool:
        """Whether a request succeeded within all of them."""
        if not outcome.succeeded:
            return False
        pairs = (
            (self.ttft, outcome.time_to_first_token),
            (self.tpot, outcome.time_per_output_token),
            (self.e2e, outcome.end_to_end),
        )
        return all(
            limit is None or seconds is None or seconds * MILLISECONDS <= limit
            for limit, seconds in pairs
        )


@dataclass(frozen=True, slots=True)
class Window:
    """The part [begin, end) of a run that counts, in the clock of its outcomes."""

    begin: float
    end: float

    def __contains__(self, time: float) -> bool:
        return self.begin <= time < self.end

    @property
    def seconds(self) -> float:
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Summary:
    """Latencies are those of the requests that were scheduled in the window and succeeded.

    Throughput is what completed in the window, whenever it was scheduled: requests and tokens a
    second. `goodput` counts the requests scheduled in the window that met all objectives. The
    `makespan_...` figures divide all of the run by the time from its first arrival to its last
    token, warm-up and drain included, as other tools do. Lengths other than asked for are in
    `wrong_lengths`; `lateness` says how late the generator itself sent.
    """

    seconds: float
    requests: int
    succeeded: int
    errors: Mapping[str, int]
    wrong_lengths: int
    ttft: Percentiles | None
    tpot: Percentiles | None
    itl: Percentiles | None
    e2e: Percentiles | None
    lateness: Percentiles | None
    request_throughput: float
    output_token_throughput: float
    goodput: float | None
    makespan_seconds: float
    makespan_request_throughput: float
    makespan_output_token_throughput: float


def window_of(
    outcomes: Sequence[Outcome], seconds: float | None, warm_up: float, cool_down: float
) -> Window:
    """Arrivals last `seconds` from the first; in a closed loop (None) to the last one, with it."""
    scheduled = [outcome.scheduled for outcome in outcomes]
    start = min(scheduled, default=0.0)
    last = math.nextafter(max(scheduled, default=0.0), math.inf)
    end = last if seconds is None else start + seconds
    return Window(start + warm_up, max(end - cool_down, start + warm_up))


def summarise(
    outcomes: Sequence[Outcome], window: Window, objectives: Objectives | None = None
) -> Summary:
    """The figures of a run. Every outcome in the window counts, as a success or as an error."""
    inside = [outcome for outcome in outcomes if outcome.scheduled in window]
    good = [outcome for outcome in inside if outcome.succeeded]
    length = window.seconds or float("inf")
    completed = [one for one in outcomes if one.succeeded and one.texts[-1] in window]
    all_good = [outcome for outcome in outcomes if outcome.succeeded]
    tokens = sum(outcome.tokens_between(window.begin, window.end) for outcome in all_good)
    makespan = _makespan(outcomes, all_good)
    met = sum(map(objectives.met, inside)) / length if objectives else None
    tpot = [one.time_per_output_token for one in good]
    return Summary(
        seconds=window.seconds,
        requests=len(inside),
        succeeded=len(good),
        errors=dict(Counter(one.error for one in inside if not one.succeeded)),
        wrong_lengths=sum(
            one.completion_tokens != one.asked_output
            or (one.prompt_tokens or one.asked_input) != one.asked_input
            for one in good
        ),
        ttft=Percentiles.of(one.time_to_first_token for one in good),
        tpot=Percentiles.of(each for each in tpot if each is not None),
        itl=Percentiles.of(gap for one in good for gap in one.inter_token_latencies),
        e2e=Percentiles.of(one.end_to_end for one in good),
        lateness=Percentiles.of(one.sent - one.scheduled for one in inside),
        request_throughput=len(completed) / length,
        output_token_throughput=tokens / length,
        goodput=met,
        makespan_seconds=makespan,
        makespan_request_throughput=len(all_good) / (makespan or float("inf")),
        makespan_output_token_throughput=sum(one.completion_tokens for one in all_good)
        / (makespan or float("inf")),
    )


def _makespan(outcomes: Sequence[Outcome], good: Sequence[Outcome]) -> float:
    if not good:
        return 0.0
    return max(one.texts[-1] for one in good) - min(one.scheduled for one in outcomes)
