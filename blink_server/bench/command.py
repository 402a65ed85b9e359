"""`blink-server bench`: measures a server, alone or beside noisy neighbours."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import closing, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

import click

from blink_server.bench.energy import energy_meter
from blink_server.bench.figures import says_nothing
from blink_server.bench.interference import ALTERNATING, CHOICES, Neighbours, parse_cores
from blink_server.bench.options import bench_options
from blink_server.bench.report import describe, write_report
from blink_server.bench.session import ALONE, BESIDE, Condition, Run, Session
from blink_server.bench.settings import BenchSettings
from blink_server.errors import BlinkError

_ALONE = Condition(ALONE, lambda: nullcontext(None))


@click.group("bench")
def bench_group() -> None:
    """Measure any server that has the OpenAI API."""


@bench_group.command("serve")
@bench_options
def serve_command(**options: Any) -> None:
    """Measure latency and throughput at one load or over a sweep of loads."""
    sys.exit(_bench("serve", BenchSettings(**options), [_ALONE]))


@bench_group.command("interfere")
@bench_options
@click.option(
    "--neighbour-cores", required=True, help="Run a neighbour on each of these cores, such as 2-15."
)
@click.option(
    "--neighbours",
    type=click.Choice(CHOICES),
    default=ALTERNATING,
    show_default=True,
    help="bzip2 compresses; memory sweeps 256 MiB; alternating uses both, core by core.",
)
def interfere_command(neighbour_cores: str, neighbours: str, **options: Any) -> None:
    """Measure alone and beside noisy neighbours, in turns.

    --repeats is the number of rounds; each has both conditions, with the same arrivals.
    """
    cores = parse_cores(neighbour_cores)
    beside = Condition(BESIDE, lambda: Neighbours(neighbours, cores))
    more = {"neighbours": neighbours, "neighbour_cores": cores}
    sys.exit(_bench("interfere", BenchSettings(**options), [_ALONE, beside], **more))


def _bench(
    command: str, settings: BenchSettings, conditions: Sequence[Condition], **more: Any
) -> int:
    """Measure, print, write; the exit status: 1 where a run had no success in its window."""
    settings.check()
    if settings.plots and importlib.util.find_spec("matplotlib") is None:
        raise BlinkError("plots need matplotlib: pip install 'blink-server[bench]', or --no-plots")
    signal.signal(signal.SIGTERM, _interrupt)
    directory = settings.output or Path(f"bench-{datetime.now(UTC):%Y-%m-%d-%H%M%S}")
    with energy_meter(settings.gpu) as meter:
        about = describe(command, settings, meter.names if meter else (), **more)
        if settings.generator_cores is not None:
            os.sched_setaffinity(0, parse_cores(settings.generator_cores))
        runs: list[Run] = []
        with closing(Session(settings, meter).run(conditions)) as measured:
            for run in measured:
                runs.append(run)  # written at once: what is stopped leaves what it has measured
                text = write_report(directory, about, settings, runs)
    click.echo(text)
    if settings.plots:
        from blink_server.bench.plots import draw_plots

        draw_plots(directory, runs, settings.operating_range)
    click.echo(f"all figures and raw values: {directory}")
    return int(any(says_nothing(run.measurement.summary) for run in runs))


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    """SIGTERM acts as Ctrl-C does: what was started is ended."""
    signal.raise_signal(signal.SIGINT)
