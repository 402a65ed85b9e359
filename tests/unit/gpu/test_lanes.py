"""The scheduler's lanes work together on a host as a GPU's threads do, without a data race."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from blink_persistent.testing.observed import TraceKind

HERE = Path(__file__).resolve().parent
INCLUDE = HERE.parents[2] / "backends" / "blink_persistent" / "csrc" / "include"

MIXED_LAUNCH = f"trace {TraceKind.LAUNCH:d} 3 "

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")


def build(directory: Path, *options: str) -> Path:
    program = directory / "lanes"
    flags = ["-std=c++20", "-O1", "-g", "-pthread", f"-I{INCLUDE}"]
    command = ["g++", *flags, *options, str(HERE / "lanes.cc"), "-o", str(program)]
    subprocess.run(command, check=True)
    return program


def run(*command: str) -> str:
    """What the program printed, as a string of lines."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def lanes(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(build(tmp_path_factory.mktemp("lanes")))


@pytest.mark.parametrize("rows", ["fixed", "movable", "mixed"])
@pytest.mark.parametrize("seed", ["1", "2"])
def test_decisions_and_outputs_do_not_depend_on_the_number_of_lanes(
    lanes: str, seed: str, rows: str
) -> None:
    alone = run(lanes, "1", seed, rows, "0")
    assert alone.count("output") > 100
    assert (MIXED_LAUNCH in alone) == (rows == "mixed")
    assert run(lanes, "3", seed, rows, "0") == alone
    assert run(lanes, "8", seed, rows, "0") == alone


def test_lanes_agree_on_a_graph_that_is_published_meanwhile(lanes: str) -> None:
    """One of them reads the table for all, so what they fill is what is launched."""
    alone = run(lanes, "1", "1", "movable", "1")
    assert run(lanes, "8", "1", "movable", "1") == alone
    before = run(lanes, "1", "1", "movable", "0")
    launch = f"trace {TraceKind.LAUNCH:d} 0 "
    assert 0 < alone.count(launch) < before.count(launch)
    outputs = [line for line in alone.splitlines() if line.startswith("output")]
    assert outputs == [line for line in before.splitlines() if line.startswith("output")]


def test_lanes_agree_on_a_mixed_graph_that_is_published_meanwhile(lanes: str) -> None:
    """As above; where it is not there yet, all of them take turns of prefill and decode."""
    alone = run(lanes, "1", "1", "mixed", "1")
    assert MIXED_LAUNCH in alone
    assert run(lanes, "8", "1", "mixed", "1") == alone


def test_preemption_is_part_of_the_script(lanes: str) -> None:
    assert "trace 5 " in run(lanes, "1", "1", "mixed", "0")


def test_lanes_do_not_race(tmp_path: Path) -> None:
    program = build(tmp_path, "-fsanitize=thread")
    # Thread sanitizer needs its shadow memory where address randomization may put other things.
    prefix = ["setarch", "-R"] if shutil.which("setarch") else []
    run(*prefix, str(program), "4", "2", "mixed", "1")
