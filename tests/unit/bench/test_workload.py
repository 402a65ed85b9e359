from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blink_server.bench import arrivals
from blink_server.bench.lengths import parse_lengths
from blink_server.bench.trace import TraceRow, read_trace
from blink_server.bench.workload import (
    Size,
    closed_loop,
    independent,
    open_loop,
    recorded,
    replayed,
)
from blink_server.errors import BlinkError

DRAW = independent(parse_lengths("uniform:100:0.3"), parse_lengths("lognormal:50:0.5"))


def random(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_poisson_gaps_are_exponential() -> None:
    times = np.array(arrivals.poisson(20.0, 1000.0, random()))
    assert len(times) == pytest.approx(20_000, abs=5 * math.sqrt(20_000))
    gaps = np.diff(times)
    assert gaps.mean() == pytest.approx(0.05, rel=0.04)
    assert gaps.std() == pytest.approx(0.05, rel=0.04)  # as the mean is: no other law of gaps
    assert np.quantile(gaps, 0.9) == pytest.approx(0.05 * math.log(10), rel=0.05)


@given(st.floats(0.01, 200), st.floats(0.01, 20), st.integers(0, 2**32))
def test_arrivals_are_in_order_and_in_time(rate: float, seconds: float, seed: int) -> None:
    for times in (arrivals.poisson(rate, seconds, random(seed)), arrivals.constant(rate, seconds)):
        assert times == sorted(times)
        assert all(0 <= time < seconds for time in times)


@given(st.integers(1, 50), st.integers(1, 50))
def test_constant_arrivals_are_as_many_as_the_rate_says(rate: int, seconds: int) -> None:
    assert len(arrivals.constant(rate, seconds)) == rate * seconds


def test_lengths_stay_in_their_range() -> None:
    assert set(parse_lengths("7").draw(50, random())) == {7}
    uniform = parse_lengths("uniform:1024:0.3").draw(5000, random())
    assert (min(uniform), max(uniform)) == (716, 1332)
    assert np.mean(uniform) == pytest.approx(1024, rel=0.02)
    lognormal = parse_lengths("lognormal:200:1").draw(5000, random())
    assert np.median(lognormal) == pytest.approx(200, rel=0.1)
    assert min(lognormal) >= 1


@pytest.mark.parametrize(
    "text", ["", "0", "x", "uniform:10", "uniform:10:2", "lognormal:5:-1", "normal:1:1", "nan"]
)
def test_lengths_that_mean_nothing_are_refused(text: str) -> None:
    with pytest.raises(BlinkError, match="lengths"):
        parse_lengths(text)


def test_a_seed_is_a_workload_and_another_one_another() -> None:
    one = open_loop("poisson", 10, 5, DRAW, [1, 2])
    assert one == open_loop("poisson", 10, 5, DRAW, [1, 2])
    assert one != open_loop("poisson", 10, 5, DRAW, [1, 3])


def test_arrivals_do_not_depend_on_lengths_nor_prompts_on_answers() -> None:
    fixed = independent(parse_lengths("uniform:100:0.3"), parse_lengths("9"))
    one, other = (open_loop("poisson", 10, 5, draw, [1]) for draw in (DRAW, fixed))
    assert one.times == other.times
    assert [s.input_tokens for s in one.sizes] == [s.input_tokens for s in other.sizes]
    assert [s.output_tokens for s in one.sizes] != [s.output_tokens for s in other.sizes]


def test_a_closed_loop_has_clients_and_no_times() -> None:
    loop = closed_loop(3, 10, DRAW, [1])
    assert (loop.concurrency, len(loop.sizes), loop.times, loop.seconds) == (3, 10, (), None)


def test_a_trace_is_replayed_at_its_rate() -> None:
    rows = [TraceRow(0, 5, 6), TraceRow(2, 7, 8), TraceRow(6, 9, 1)]
    workload = replayed(rows, 2.0)
    assert workload.times == [0, 1, 3]
    assert workload.seconds == 4.5
    assert workload.sizes == [Size(5, 6), Size(7, 8), Size(9, 1)]


def test_recorded_lengths_stay_in_pairs() -> None:
    rows = [TraceRow(0, 5, 6), TraceRow(0, 50, 60)]
    assert set(recorded(rows)(100, random())) == {Size(5, 6), Size(50, 60)}


def test_traces_are_read_and_sorted(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("arrival,user,input_tokens,output_tokens\n9,a,3,4\n7,b,1,2\n")
    (tmp_path / "t.jsonl").write_text(
        '{"arrival": 9, "input_tokens": 3, "output_tokens": 4}\n\n'
        '{"arrival": 7, "input_tokens": 1, "output_tokens": 2}\n'
    )
    expected = [TraceRow(0, 1, 2), TraceRow(2, 3, 4)]
    assert read_trace(tmp_path / "t.csv") == expected
    assert read_trace(tmp_path / "t.jsonl") == expected


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "t.jsonl:1: is not JSON"),
        ("[]", "t.jsonl:1: is not an object"),
        ('{"arrival": 0, "input_tokens": 0, "output_tokens": 1}', "t.jsonl:1: input_tokens is 0"),
        ('{"arrival": 0, "input_tokens": 3}', "t.jsonl:1: output_tokens is None"),
        ('{"input_tokens": 3, "output_tokens": 3}', "t.jsonl:1: arrival is None"),
        ("", "has no requests"),
    ],
)
def test_what_is_wrong_in_a_trace_is_named(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "t.jsonl").write_text(line + "\n")
    with pytest.raises(BlinkError, match=said):
        read_trace(tmp_path / "t.jsonl")


def test_a_trace_of_lengths_alone_needs_no_arrivals(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"input_tokens": 3, "output_tokens": 4}\n')
    assert read_trace(tmp_path / "t.jsonl", timed=False) == [TraceRow(0, 3, 4)]
