"""Plots as PNG files; matplotlib is imported here alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from blink_server.bench.figures import Figures, Sweep, figures_of, sweeps_of
from blink_server.bench.session import ALONE, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure


def draw_plots(directory: Path, runs: Sequence[Run], operating_range: float | None) -> list[Path]:
    """Write `latencies.png`, and `sweep.png` where there are two rates; returns the paths."""
    figures = figures_of(runs)
    sweeps = sweeps_of(figures, operating_range)
    paths = [_save(_latencies(runs), directory / "latencies.png")]
    if sweeps:
        paths.append(_save(_sweep(figures, sweeps), directory / "sweep.png"))
    return paths


def _latencies(runs: Sequence[Run]) -> Figure:
    """Distributions: the share of requests (of gaps, for ITL) up to a latency."""
    figure, (ttft, tpot, itl) = _panels(3)
    for load, condition in dict.fromkeys((run.load.name, run.condition) for run in runs):
        good = [
            one
            for run in runs
            if (run.load.name, run.condition) == (load, condition)
            for one in run.measurement.counted
        ]
        label, style = f"{load}, {condition}", _style(condition)
        _distribution(ttft, (one.time_to_first_token for one in good), label, style)
        tpots = (one.time_per_output_token for one in good)
        _distribution(tpot, (each for each in tpots if each is not None), label, style)
        gaps = (gap for one in good for gap in one.inter_token_latencies)
        _distribution(itl, gaps, label, style)
    for axes, name in ((ttft, "TTFT"), (tpot, "TPOT"), (itl, "ITL")):
        axes.set(xlabel=f"{name}, ms", ylabel="share", xscale="log")
        _plain_numbers(axes.xaxis)
    if ttft.lines:
        ttft.legend(fontsize="small")
    return figure


def _sweep(figures: Sequence[Figures], sweeps: Sequence[Sweep]) -> Figure:
    """Throughput with its fit, and P99 latencies, over the offered load."""
    figure, (throughput, ttft, tpot) = _panels(3)
    for sweep in sweeps:
        ours = sorted(
            (one for one in figures if one.condition == sweep.condition and one.rate),
            key=lambda one: one.rate or 0.0,
        )
        style, loads = _style(sweep.condition), np.array([one.rate for one in ours], float)
        achieved = [one.request_throughput for one in ours]
        [line] = throughput.plot(loads, achieved, "o", label=sweep.condition)
        dense, fitted = np.linspace(0, loads[-1], 200), sweep.saturation
        model = np.minimum(fitted.slope * dense, fitted.plateau or np.inf)
        throughput.plot(dense, model, style, color=line.get_color())
        for axes, values in (
            (ttft, [one.ttft for one in ours]),
            (tpot, [one.tpot for one in ours]),
        ):
            p99 = [value.p99 if value else np.nan for value in values]
            axes.plot(loads, p99, style, marker="o", label=sweep.condition)
    throughput.axvline(sweeps[0].range_end, color="grey", linewidth=0.8)
    throughput.set(xlabel="offered load, requests/s", ylabel="throughput, requests/s")
    for axes, name in ((ttft, "TTFT"), (tpot, "TPOT")):
        axes.set(xlabel="offered load, requests/s", ylabel=f"{name} P99, ms", yscale="log")
        _plain_numbers(axes.yaxis)
    throughput.legend(fontsize="small")
    return figure


def _panels(count: int) -> tuple[Figure, Sequence[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * count, 4), layout="constrained")
    return figure, [figure.add_subplot(1, count, place + 1) for place in range(count)]


def _distribution(axes: Axes, seconds: Iterable[float], label: str, style: str) -> None:
    values = np.sort(np.fromiter(seconds, np.float64)) * 1e3
    if len(values):
        axes.plot(values, np.arange(1, len(values) + 1) / len(values), style, label=label)


def _plain_numbers(axis: Axis) -> None:
    """200 on a logarithmic axis, not a power of ten."""
    from matplotlib.ticker import LogFormatter

    axis.set_major_formatter(LogFormatter())
    axis.set_minor_formatter(LogFormatter(labelOnlyBase=False, minor_thresholds=(1, 0.4)))


def _style(condition: str) -> str:
    return "-" if condition == ALONE else "--"


def _save(figure: Figure, path: Path) -> Path:
    figure.savefig(path, dpi=120)
    return path
