"""A benchmark that is stopped on its way takes its servers and workers with it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import pytest

from blink_server.testing.server_process import processes
from blink_server.testing.tiny_gguf import write_tiny_gguf

pytestmark = pytest.mark.slow

BENCH = Path(__file__).parents[1] / "bench"


def start(directory: Path, script: str, *arguments: str) -> subprocess.Popen[str]:
    """A benchmark whose processes all have `directory` in their environment."""
    return subprocess.Popen(
        [sys.executable, str(BENCH / script), *arguments],
        env=os.environ | {"TMPDIR": str(directory)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def stop_after_a_line(
    bench: subprocess.Popen[str], stream: IO[str] | None, number: signal.Signals
) -> tuple[str, Sequence[str]]:
    """The first line that a stream has; the benchmark is then stopped, and ends."""
    assert stream is not None
    line = stream.readline()
    bench.send_signal(number)
    return line, bench.communicate(timeout=60)


def import_tiny(directory: Path) -> Path:
    gguf, repository = directory / "tiny.gguf", directory / "models"
    write_tiny_gguf(gguf)
    command = [sys.executable, "-m", "blink_server", "import", f"--gguf={gguf}"]
    name = "--name=smollm2-135m-instruct"
    subprocess.run([*command, name, f"--model-repository={repository}"], check=True)
    return repository


@pytest.fixture
def place(short_path: Path) -> Iterator[Path]:
    """Whatever a benchmark should have ended is ended after the test."""
    yield short_path
    for pid in processes(short_path):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_servers_of_the_bench(place: Path, number: signal.Signals) -> None:
    options = ["--rounds=1000", f"--model-repository={import_tiny(place)}"]
    bench = start(place, "serve_bench.py", *options)
    line, said = stop_after_a_line(bench, bench.stdout, number)
    assert line.startswith("start 1 of 1000: ready in"), said
    assert bench.returncode == 1
    assert processes(place) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_worker_of_the_throughput_bench(place: Path, number: signal.Signals) -> None:
    options = ["--rate=1000", "--seconds=600", "--connections=2"]
    bench = start(place, "worker_throughput.py", *options)
    line, said = stop_after_a_line(bench, bench.stderr, number)
    assert line.startswith("1000 tokens a second by worker"), said
    assert bench.returncode != 0
    assert processes(place) == []
