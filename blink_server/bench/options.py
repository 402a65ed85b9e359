"""The command-line options that all benchmarks have: the fields of `BenchSettings`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from blink_server.bench.settings import ROUTES

_POSITIVE = click.FloatRange(min=0, min_open=True)
_SECONDS = click.FloatRange(min=0)
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def rates(text: str) -> tuple[float, ...]:
    """Numbers above 0 with commas between them; ValueError says what they must be."""
    try:
        numbers = tuple(float(part) for part in text.split(",") if text)
    except ValueError:
        numbers = (0.0,)
    if not all(0 < number < 1e9 for number in numbers):
        raise ValueError(f"{text!r}: numbers above 0 with commas between them are due")
    return numbers


def counts(text: str) -> tuple[int, ...]:
    """The same for whole numbers."""
    numbers = rates(text)
    if not all(number.is_integer() for number in numbers):
        raise ValueError(f"{text!r}: whole numbers are due")
    return tuple(map(int, numbers))


_WHO = (
    click.option(
        "--url", default="http://127.0.0.1:8000", show_default=True, help="URL of the server."
    ),
    click.option("--model", help="Model; may be omitted if the server has only one."),
    click.option(
        "--api-key-file",
        type=_FILE,
        help="File whose first key is sent if the server requires one.",
    ),
    click.option(
        "--endpoint",
        type=click.Choice(list(ROUTES)),
        default="completions",
        show_default=True,
        help="API to send requests to.",
    ),
)
_WHEN = (
    click.option(
        "--rate",
        type=rates,
        default="",
        metavar="N,N,...",
        help="Offered loads in requests per second; several make a sweep.",
    ),
    click.option(
        "--concurrency",
        type=counts,
        default="",
        metavar="N,N,...",
        help="Instead of --rate: number of closed-loop clients.",
    ),
    click.option(
        "--trace",
        type=_FILE,
        help="Instead of --rate: arrivals and lengths from a JSON Lines or .csv file.",
    ),
    click.option("--speed", type=_POSITIVE, default=1.0, help="Replay speed of a trace."),
    click.option(
        "--arrivals",
        type=click.Choice(["poisson", "constant"]),
        default="poisson",
        show_default=True,
        help="Arrival process of --rate.",
    ),
    click.option(
        "--duration-secs",
        type=_POSITIVE,
        default=60.0,
        show_default=True,
        help="How long requests arrive at each rate.",
    ),
    click.option(
        "--requests",
        type=click.IntRange(min=1),
        default=256,
        show_default=True,
        help="Number of requests of a closed loop.",
    ),
)
_WHAT = (
    click.option(
        "--input-tokens",
        default="uniform:1024:0.3",
        show_default=True,
        help="Prompt lengths: N, uniform:MEAN:SPREAD or lognormal:MEDIAN:SIGMA.",
    ),
    click.option(
        "--output-tokens",
        default="uniform:256:0.3",
        show_default=True,
        help="Answer lengths, in the same form.",
    ),
    click.option(
        "--lengths-from", type=_FILE, help="Draw prompt and answer lengths from this trace."
    ),
    click.option(
        "--prompt-ids",
        type=click.IntRange(min=1),
        metavar="VOCABULARY",
        help="Send random token ids below this number instead of text.",
    ),
    click.option(
        "--tokenizer",
        type=_FILE,
        help="tokenizer.json to count prompt tokens with, instead of the server's /tokenize.",
    ),
    click.option(
        "--exact",
        type=click.Choice(["ignore-eos", "min-tokens", "no"]),
        default="ignore-eos",
        show_default=True,
        help="How to tell the server not to end answers early.",
    ),
    click.option("--extra-body", default="{}", help="JSON object of further request fields."),
)
_HOW = (
    click.option(
        "--warm-up-secs",
        type=_SECONDS,
        default=5.0,
        show_default=True,
        help="Ignore requests that arrive in the first seconds.",
    ),
    click.option(
        "--cool-down-secs",
        type=_SECONDS,
        default=5.0,
        show_default=True,
        help="Ignore requests that arrive in the last seconds.",
    ),
    click.option(
        "--timeout-secs",
        type=_POSITIVE,
        default=600.0,
        show_default=True,
        help="Time limit from a request's scheduled arrival to its end.",
    ),
    click.option(
        "--slo",
        multiple=True,
        help="ttft:MS, tpot:MS or e2e:MS; goodput must meet all. Repeatable.",
    ),
    click.option(
        "--repeats",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="Number of runs.",
    ),
    click.option(
        "--seed",
        type=click.IntRange(min=0),
        default=1,
        show_default=True,
        help="Seed of arrivals, lengths and prompts.",
    ),
    click.option(
        "--operating-range",
        type=_POSITIVE,
        help="Summarize up to this load, not to the measured saturation point.",
    ),
    click.option("--generator-cores", help="Cores for the load generator, such as 0-1."),
    click.option(
        "--gpu",
        type=int,
        multiple=True,
        help="GPU whose energy to count; repeatable. [default: all]",
    ),
    click.option(
        "--output",
        type=click.Path(file_okay=False, path_type=Path),
        help="Directory for results. [default: bench-<time>]",
    ),
    click.option(
        "--plots/--no-plots", default=True, show_default=True, help="Write plots as PNG files."
    ),
)


def bench_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of `BenchSettings`."""
    for option in reversed((*_WHO, *_WHEN, *_WHAT, *_HOW)):
        command = option(command)
    return command
