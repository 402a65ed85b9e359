from __future__ import annotations

import json
from array import array
from dataclasses import replace
from pathlib import Path

import click
import pytest

from blink_server.bench.exchange import Site
from blink_server.bench.figures import figures_of, says_nothing, sweeps_of
from blink_server.bench.measurement import Measurement
from blink_server.bench.options import bench_options
from blink_server.bench.outcome import Outcome
from blink_server.bench.plots import draw_plots
from blink_server.bench.report import describe, write_report
from blink_server.bench.session import ALONE, BESIDE, Run
from blink_server.bench.settings import BenchSettings, Load
from blink_server.bench.summary import Window, summarise
from blink_server.bench.tables import markdown
from blink_server.bench.workload import Size, Workload
from blink_server.errors import BlinkError

PLATEAU = 5.0
SITE = Site("http://127.0.0.1:8000")


def settings(*arguments: str) -> BenchSettings:
    """What the command line would make of them."""
    command = click.command()(bench_options(lambda **options: options))
    with command.make_context("bench", list(arguments)) as context:
        return BenchSettings(**context.params)


def run(rate: float, condition: str, *, slower: float = 1.0, round_: int = 1) -> Run:
    """Ten seconds at a rate; beyond PLATEAU / slower requests a second the rest fails."""
    served = min(rate, PLATEAU / slower)
    outcomes = []
    for number in range(int(rate * 10)):
        scheduled = number / rate
        outcome = Outcome(number, scheduled, 8, 3, sent=scheduled + 0.001)
        if scheduled * rate < served * 10:
            at = scheduled * 0.9 + 0.1 * slower
            outcome.texts = array("d", [at, at + 0.02 * slower, at + 0.04 * slower])
            outcome.prompt_tokens, outcome.completion_tokens = 8, 3
        else:
            outcome.error, outcome.detail = "http_503", "full"
        outcomes.append(outcome)
    window = Window(0.0, 10.0)
    measured = Measurement(outcomes, 0.0, window, summarise(outcomes, window), 0.05, None)
    load = Load(f"{rate:g}/s", rate, 0, lambda _: Workload([Size(8, 3)]))
    beside = None if condition == ALONE else 0.98
    return Run(load, condition, round_, (1, 0, round_), measured, beside)


@pytest.fixture
def runs() -> list[Run]:
    return [
        run(rate, condition, slower=slower)
        for rate in (1, 2, 4, 8, 16)
        for condition, slower in ((ALONE, 1.0), (BESIDE, 2.0))
    ]


def test_repeated_runs_are_averaged() -> None:
    one, other = run(2, ALONE), run(2, ALONE, slower=2.0, round_=2)
    [figures] = figures_of([one, other])
    assert figures.runs == 2
    assert figures.requests == 40
    first, second = one.measurement.summary, other.measurement.summary
    assert first.tpot is not None
    assert second.tpot is not None
    assert figures.tpot is not None
    assert figures.tpot.p99 == pytest.approx((first.tpot.p99 + second.tpot.p99) / 2)
    assert figures.tpot.p99 == pytest.approx(30)
    assert figures.tpot.count == 40


def test_conditions_are_compared_over_the_range_of_the_first(runs: list[Run]) -> None:
    alone, beside = sweeps_of(figures_of(runs), None)
    assert (alone.condition, beside.condition) == (ALONE, BESIDE)
    assert alone.saturation.plateau == pytest.approx(5, rel=0.05)
    assert beside.saturation.plateau == pytest.approx(2.5, rel=0.05)
    assert (alone.range_end, beside.range_end) == (4, 4)
    assert beside.saturation.serviceable_load == 2
    assert beside.tpot_p99 == pytest.approx(2 * (alone.tpot_p99 or 0))
    assert beside.throughput / alone.throughput == pytest.approx(2.5 / 4, rel=0.05)


def test_a_range_that_is_set_is_kept(runs: list[Run]) -> None:
    assert {one.range_end for one in sweeps_of(figures_of(runs), 2.0)} == {2.0}


def test_one_rate_is_no_sweep() -> None:
    assert sweeps_of(figures_of([run(2, ALONE)]), None) == []


def test_the_tables_say_what_was_measured(runs: list[Run]) -> None:
    figures = figures_of(runs)
    text = markdown(figures, sweeps_of(figures, None), [])
    assert "| 4/s | beside / alone | " in text
    ratios = next(line for line in text.splitlines() if line.startswith("| 2/s | beside / alone"))
    assert " 2.00x " in ratios
    assert ratios.rstrip(" |").endswith("1.00x")
    assert "16/s, alone: errors: 110 http_503." in text
    assert "1.00 ms late (p99) and took 5% of a core" in text
    assert "GPU" not in text
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in tables[:2]} == {tables[2].count("|")}


def test_an_empty_window_is_told() -> None:
    one = run(2, ALONE)
    empty = replace(one.measurement, outcomes=[], summary=summarise([], Window(0.0, 0.0)))
    text = markdown(figures_of([replace(one, measurement=empty)]), [], [])
    assert "2/s, alone: no request arrived between warm-up and cool-down (--warm" in text


def test_energy_is_labelled_as_the_gpus() -> None:
    one = run(2, ALONE)
    measured = replace(one.measurement, gpu_mj_per_token=412.0)
    text = markdown(figures_of([replace(one, measurement=measured)]), [], ["H200"])
    assert "GPU mJ/token" in text
    assert "| 412 |" in text
    assert "GPU boards alone (NVML), idle power and the whole run included: H200." in text


def test_the_files(runs: list[Run], tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    asked = settings("--rate=1,2", f"--api-key-file={keys}")
    assert asked.site.api_key == "secret"
    about = describe("interfere", asked, [], neighbours="bzip2")
    text = write_report(tmp_path / "out", about, asked, runs)
    assert (tmp_path / "out" / "report.md").read_text() == text
    written = (tmp_path / "out" / "results.json").read_text()
    assert "secret" not in written
    document = json.loads(written)
    assert document["settings"]["seed"] == 1
    assert document["machine"]["packages"]["blink-server"]
    assert len(document["runs"]) == len(runs)
    assert document["sweeps"][0]["saturation"]["serviceable_load"] == 4
    lines = (tmp_path / "out" / "requests.jsonl").read_text().splitlines()
    assert len(lines) == sum(len(one.measurement.outcomes) for one in runs)
    first, last = json.loads(lines[0]), json.loads(lines[-1])
    assert (first["ttft"], first["tpot"], first["itl_max"]) == (0.1, 0.02, 0.02)
    assert first["in_window"] is True
    assert (last["error"], last["run"]) == ("http_503", len(runs) - 1)


@pytest.mark.slow
def test_plots(runs: list[Run], tmp_path: Path) -> None:
    paths = draw_plots(tmp_path, runs, None)
    assert [path.name for path in paths] == ["latencies.png", "sweep.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_a_run_without_any_success_is_told() -> None:
    lost = [Outcome(0, 1.0, 8, 3, error="connect")]
    assert says_nothing(summarise(lost, Window(0.0, 10.0)))
    assert says_nothing(summarise([], Window(0.0, 10.0)))
    assert not says_nothing(run(16, ALONE).measurement.summary)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "one of --rate, --concurrency and --trace"),
        (["--rate=1", "--concurrency=2"], "one of --rate"),
        (["--rate=1", "--duration-secs=8"], "leave nothing"),
        (["--rate=1", "--url=localhost:8000"], "--url is 'localhost:8000'"),
        (["--rate=1", "--prompt-ids=9", "--endpoint=chat"], "--prompt-ids"),
    ],
)
def test_options_that_do_not_go_together(arguments: list[str], said: str) -> None:
    with pytest.raises(BlinkError, match=said):
        settings(*arguments).check()


@pytest.mark.parametrize(
    "arguments", [["--extra-body=["], ["--extra-body=3"], ["--slo=ttft"], ["--slo=itl:3"]]
)
def test_options_that_cannot_be_read(arguments: list[str]) -> None:
    with pytest.raises(BlinkError, match="--"):
        settings("--rate=1", *arguments).target(SITE, "m")


@pytest.mark.parametrize("option", ["--rate=0", "--rate=a", "--rate=1,,2", "--concurrency=1.5"])
def test_loads_that_are_no_numbers(option: str) -> None:
    with pytest.raises(click.UsageError, match="due"):
        settings(option)


def test_what_is_asked_of_the_model() -> None:
    asked = settings("--rate=1", "--exact=min-tokens", '--extra-body={"top_p": 1}', "--slo=e2e:9")
    target = asked.target(SITE, "m")
    assert target.fields == {"model": "m", "temperature": 0, "min_tokens": 1, "top_p": 1}
    assert target.objectives.e2e == 9
    assert settings("--rate=1").target(SITE, "m").fields["ignore_eos"] is True
    assert "ignore_eos" not in settings("--rate=1", "--exact=no").target(SITE, "m").fields


def test_loads(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("arrival,input_tokens,output_tokens\n0,3,4\n1,5,6\n")
    names = [load.name for load in settings("--rate=0.5,8").loads()]
    assert names == ["0.5/s", "8/s"]
    one, two = (settings(f"--rate={rates}").loads()[-1] for rates in ("8", "0.5,8"))
    assert one.key == two.key
    [closed] = settings("--concurrency=3", "--requests=5").loads()
    assert (closed.rate, closed.workload((1,)).concurrency) == (None, 3)
    [trace] = settings(f"--trace={tmp_path / 't.csv'}", "--speed=2").loads()
    assert (trace.name, trace.rate) == ("t.csv x2", 2.0)
    [drawn] = settings("--rate=5", f"--lengths-from={tmp_path / 't.csv'}").loads()
    assert set(drawn.workload((1,)).sizes) == {Size(3, 4), Size(5, 6)}
