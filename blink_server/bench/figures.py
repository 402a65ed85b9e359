"""From runs to what is reported: repeated runs averaged, sweeps fitted, conditions compared."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

from blink_server.bench.saturation import Saturation, fit, geometric_mean
from blink_server.bench.session import Run
from blink_server.bench.summary import Percentiles, Summary


@dataclass(frozen=True, slots=True)
class Figures:
    """A load under a condition: means over its repeated runs, errors summed."""

    load: str
    rate: float | None
    condition: str
    runs: int
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
    generator_cpu: float
    gpu_mj_per_token: float | None


@dataclass(frozen=True, slots=True)
class Sweep:
    """A condition over all rates: its own fit, and the paper's table over an operating range.

    The range ends at `range_end` (requests a second), the serviceable load of the first condition
    unless the user has set it: the same range for all that is compared. `ttft_p99` and `tpot_p99`
    are geometric means over it, in milliseconds; `throughput` is that at its end.
    """

    condition: str
    saturation: Saturation
    range_end: float
    ttft_p99: float | None
    tpot_p99: float | None
    throughput: float


def figures_of(runs: Sequence[Run]) -> list[Figures]:
    """One for each load and condition, in the order in which they were first measured."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.load.name, run.condition), []).append(run)
    return [_averaged(group) for group in groups.values()]


def sweeps_of(figures: Sequence[Figures], operating_range: float | None) -> list[Sweep]:
    """One for each condition; none where fewer than two rates were measured."""
    sweeps: list[Sweep] = []
    for condition in dict.fromkeys(one.condition for one in figures):
        ours = [one for one in figures if one.condition == condition and one.rate is not None]
        rates = [one.rate or 0.0 for one in ours]
        saturation = fit(rates, [one.request_throughput for one in ours])
        if saturation is None:
            continue
        end = operating_range or (sweeps[0].range_end if sweeps else saturation.serviceable_load)
        inside = [one for one in ours if (one.rate or 0.0) <= end]
        sweeps.append(
            Sweep(
                condition,
                saturation,
                end,
                geometric_mean(one.ttft.p99 for one in inside if one.ttft),
                geometric_mean(one.tpot.p99 for one in inside if one.tpot),
                max(inside, key=lambda one: one.rate or 0.0).request_throughput if inside else 0.0,
            )
        )
    return sweeps


def _averaged(runs: Sequence[Run]) -> Figures:
    summaries = [run.measurement.summary for run in runs]
    first = runs[0]
    return Figures(
        load=first.load.name,
        rate=first.load.rate,
        condition=first.condition,
        runs=len(runs),
        requests=sum(one.requests for one in summaries),
        succeeded=sum(one.succeeded for one in summaries),
        errors=dict(sum((Counter(one.errors) for one in summaries), Counter())),
        wrong_lengths=sum(one.wrong_lengths for one in summaries),
        ttft=_mean_percentiles(one.ttft for one in summaries),
        tpot=_mean_percentiles(one.tpot for one in summaries),
        itl=_mean_percentiles(one.itl for one in summaries),
        e2e=_mean_percentiles(one.e2e for one in summaries),
        lateness=_mean_percentiles(one.lateness for one in summaries),
        request_throughput=statistics.fmean(one.request_throughput for one in summaries),
        output_token_throughput=statistics.fmean(one.output_token_throughput for one in summaries),
        goodput=_mean(one.goodput for one in summaries),
        generator_cpu=max(run.measurement.generator_cpu for run in runs),
        gpu_mj_per_token=_mean(run.measurement.gpu_mj_per_token for run in runs),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return statistics.fmean(there) if there else None


def _mean_percentiles(of: Iterable[Percentiles | None]) -> Percentiles | None:
    there = [one for one in of if one is not None]
    if not there:
        return None
    count, *rest = ([getattr(one, field.name) for one in there] for field in fields(Percentiles))
    return Percentiles(sum(count), *map(statistics.fmean, rest))


def says_nothing(summary: Summary) -> bool:
    """Whether no request of the window succeeded, or none arrived in it."""
    return summary.succeeded == 0
