"""Frames of `top` from a feed that was recorded from a server with six clients and four rows."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from blink_server.top.feed import parse
from blink_server.top.picture import picture
from blink_server.top.watch import Rates, Watch

FEED = (Path(__file__).parent / "feed.txt").read_bytes().splitlines(keepends=True)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def watch() -> Watch:
    """What the whole recording leaves behind, at the time of its last event."""
    clock = Clock()
    watch = Watch("http://here", clock)
    for name, payload in parse(FEED):
        clock.now = payload["time"]
        watch.apply(name, payload)
    return watch


def lines(watch: Watch, width: int = 80, *models: str) -> list[str]:
    output = io.StringIO()
    Console(file=output, width=width).print(picture(watch, width, models))
    return [line.rstrip() for line in output.getvalue().splitlines()]


def test_a_frame_tells_what_the_feed_told(watch: Watch) -> None:
    text = "\n".join(lines(watch))
    stats = watch.state["schedulers"]["tiny:1"]
    cells = watch.state["rings"]["tiny:1"]["cells"]
    assert f"{stats['rows_used']}/4" in text
    assert f"{len(cells)}/4096 slots" in text
    decoding = sum(cell[0] == 3 for cell in cells.values())
    assert f"d decode {decoding}" in text
    assert decoding > 0
    first = next(parse(FEED))[1]
    seconds = watch.state["time"] - first["time"]
    steps = (stats["steps"] - first["schedulers"]["tiny:1"]["steps"]) / seconds
    assert f"steps {steps:.0f}/s" in text
    assert "first token" in text
    hottest = next(line for line in lines(watch) if line.startswith(("decode ", "prefill ")))
    assert hottest.endswith("#" * (80 - 46))


@pytest.mark.parametrize(
    ("minutes", "words"), [(0, "since the start"), (1, "last minute"), (5, "last 5 minutes")]
)
def test_latencies_say_what_they_are_of(watch: Watch, minutes: int, words: str) -> None:
    for told in watch.state["latencies"].values():
        told["minutes"] = minutes
    shown = [line for line in lines(watch) if line.endswith(words)]
    assert len(shown) == len(watch.state["latencies"]) == 3


def test_the_agent_is_shown_where_there_is_one(watch: Watch) -> None:
    assert "agent" not in "\n".join(lines(watch))
    stats = watch.state["schedulers"]["tiny:1"]
    counts = ("turns", "reads", "read_bytes", "writes", "written_bytes", "reconnections")
    now = watch.clock()
    watch.rates = Rates()
    for moment, count in ((now - 1, 50), (now, 90)):
        stats.update({f"agent_{name}": count + place for place, name in enumerate(counts)})
        watch.rates.observe(moment, watch.state)
    text = " ".join(" ".join(lines(watch)).split())
    assert "agent turns 40/s reads 40/s bytes read 40/s writes 40/s bytes written 40/s" in text
    assert "reconnections 95" in text


def test_slots_are_drawn_where_they_are(watch: Watch) -> None:
    ring = watch.state["rings"]["tiny:1"]
    ring["cells"] = {"0": [1, 1, 0, 0.0], "15": [4, 1, 0, 0.0], "4095": [3, 1, 1, 0.0]}
    drawn = [line for line in lines(watch) if set(line) <= set(".edpwz") and len(line) == 64]
    assert drawn[0] == "z" + "." * 63  # of slots that share a letter the one that needs a look
    assert drawn[1:] == ["." * 64, "." * 64, "." * 63 + "d"]


@pytest.mark.parametrize("width", [20, 40, 79, 200])
def test_every_width_is_kept(watch: Watch, width: int) -> None:
    assert max(map(len, lines(watch, width))) <= width


def test_a_server_without_anything_and_one_that_is_gone() -> None:
    watch = Watch("http://here")
    assert lines(watch) == ["Blink server http://here  connecting", "no models"]
    watch.apply("state", {"time": 0, "server": "STARTING", "models": {}})
    assert "starting" in lines(watch)[0]
    watch.trouble = "the connection broke"
    assert "the connection broke; this is how it was" in " ".join(lines(watch))


def test_only_the_models_asked_for_are_shown_in_detail(watch: Watch) -> None:
    broken = {"state": "UNAVAILABLE", "reason": "no [b]memory", "aliases": ["best"]}
    watch.state["models"]["other:2"] = broken
    shown = lines(watch, 80, "other")
    assert "other:2  UNAVAILABLE  best  no [b]memory" in shown
    assert not [line for line in shown if "slots" in line]
    assert [line for line in lines(watch, 80, "tiny") if "slots" in line]


def test_what_a_server_tells_does_not_control_the_terminal(watch: Watch) -> None:
    broken = {"state": "UNAVAILABLE", "reason": "\x1b]0;title\x07", "aliases": ["\x9b2J"]}
    watch.state["models"]["other:2"] = broken
    assert r"other:2  UNAVAILABLE  \x9b2J  \x1b]0;title\x07" in lines(watch, 80, "other")


def test_long_names_fold_and_states_stay_whole(watch: Watch) -> None:
    name = "ab" * 40 + ":1"
    broken = {"state": "UNAVAILABLE", "reason": "", "aliases": []}
    watch.state["models"] = {name: broken}
    first, *rest = lines(watch, 60)[1:]
    assert first.split()[1] == "UNAVAILABLE"
    folded = [first.split()[0], *rest]
    assert "".join(folded).startswith(name)


def counters(steps: int) -> dict[str, Any]:
    return {"schedulers": {"m:1": {"steps": steps}}}


def test_rates_are_those_of_the_last_seconds() -> None:
    rates, path = Rates(), ("schedulers", "m:1", "steps")
    assert rates.per_second(0.0, *path) is None
    rates.observe(10.0, counters(100))
    assert rates.per_second(10.1, *path) is None  # too early to say
    rates.observe(11.0, counters(150))
    assert rates.per_second(11.0, *path) == 50
    rates.observe(12.0, counters(150))
    assert rates.per_second(12.0, *path) == 25
    assert rates.per_second(20.0, *path) == 0  # a feed without news is an idle server
    rates.observe(21.0, counters(3))
    assert rates.per_second(21.0, *path) is None  # another scheduler: it began anew
    assert rates.per_second(21.0, "schedulers", "other", "steps") is None
