"""The files of a benchmark: results.json, requests.jsonl, report.md and plots."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from blink_server.bench.figures import figures_of, sweeps_of
from blink_server.bench.machine import PACKAGES, describe_machine
from blink_server.bench.outcome import Outcome
from blink_server.bench.session import Run
from blink_server.bench.settings import BenchSettings
from blink_server.bench.tables import markdown

METHOD = """\
Each request has a connection of its own and streams its answer; the body is made beforehand.
Latencies count from the scheduled arrival, whenever the request was sent, and are those of
successful requests that arrive within the window, the arrivals without warm-up and cool-down.
TTFT: to the first event with text. TPOT: first to last text over tokens minus one. ITL: between
events with text. Percentiles are interpolated linearly. Throughput: what ended in the window over
its length. Repeated runs are averaged. Saturation: least squares of min(slope * load, plateau).
"""


def describe(
    command: str, settings: BenchSettings, gpus: Sequence[str], **more: Any
) -> dict[str, Any]:
    """What is known before the first measurement; the machine is as it is now."""
    packages = (*PACKAGES, "httptools")
    return {
        "command": command,
        "method": METHOD,
        "machine": {**describe_machine(packages), "gpus": list(gpus)},
        "settings": asdict(settings),
        **more,
    }


def write_report(
    directory: Path, about: Mapping[str, Any], settings: BenchSettings, runs: Sequence[Run]
) -> str:
    """Write all but the plots into `directory`, which is made; returns the markdown."""
    figures = figures_of(runs)
    sweeps = sweeps_of(figures, settings.operating_range)
    text = markdown(figures, sweeps, about["machine"]["gpus"])
    document = {
        **about,
        "figures": [asdict(one) for one in figures],
        "sweeps": [asdict(one) for one in sweeps],
        "runs": [_run(run) for run in runs],
    }
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "results.json").write_text(json.dumps(document, indent=2, default=str) + "\n")
    (directory / "report.md").write_text(text)
    with (directory / "requests.jsonl").open("w") as file:
        for number, run in enumerate(runs):
            for outcome in run.measurement.outcomes:
                line = {
                    "run": number,
                    "in_window": outcome.scheduled in run.measurement.window,
                    **_request(outcome, run.measurement.begun),
                }
                file.write(json.dumps(line) + "\n")
    return text


def _run(run: Run) -> dict[str, Any]:
    measured = run.measurement
    return {
        "load": run.load.name,
        "rate": run.load.rate,
        "condition": run.condition,
        "round": run.round,
        "seed": list(run.seed),
        "generator_cpu": measured.generator_cpu,
        "neighbour_cpu": run.neighbour_cpu,
        "gpu_mj_per_token": measured.gpu_mj_per_token,
        **asdict(measured.summary),
    }


def _request(outcome: Outcome, begun: float) -> dict[str, Any]:
    """A request's raw values; times in seconds after the start of its run."""
    line: dict[str, Any] = {
        "number": outcome.number,
        "scheduled": _rounded(outcome.scheduled - begun),
        "sent": _rounded(outcome.sent - begun),
        "ended": _rounded(outcome.ended - begun),
        "asked": [outcome.asked_input, outcome.asked_output],
        "tokens": [outcome.prompt_tokens, outcome.completion_tokens],
        "finish_reason": outcome.finish_reason,
    }
    if outcome.error:
        return {**line, "error": outcome.error, "detail": outcome.detail}
    gaps = outcome.inter_token_latencies
    return {
        **line,
        "ttft": _rounded(outcome.time_to_first_token),
        "tpot": _rounded(outcome.time_per_output_token),
        "e2e": _rounded(outcome.end_to_end),
        "itl_max": _rounded(max(gaps, default=None)),
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)
