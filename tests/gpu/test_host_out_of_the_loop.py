"""Once started, the GPU needs no process of the host to generate."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from blink_persistent.gpu.driver import Gpu
from blink_persistent.ring import HEADER, STATUS, SlotState, unpack_status

pytestmark = pytest.mark.gpu

STREAMS = 64


@pytest.fixture
def runner() -> Iterator[subprocess.Popen[str]]:
    program = Path(__file__).with_name("stopped_runner.py")
    with subprocess.Popen(
        [sys.executable, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def is_stopped(process: subprocess.Popen[str]) -> bool:
    stat = Path(f"/proc/{process.pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] == "T"


def wait_until(reached: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 30
    while not reached():
        assert time.monotonic() < deadline, what


def test_streams_go_on_to_their_end_while_their_runner_is_stopped(
    runner: subprocess.Popen[str],
) -> None:
    assert runner.stdin is not None
    assert runner.stdout is not None
    handle = bytes.fromhex(runner.stdout.readline())
    with Gpu() as gpu:
        address = gpu.open_shared(handle)
        os.kill(runner.pid, signal.SIGSTOP)
        wait_until(lambda: is_stopped(runner), "the runner is stopped")
        header = gpu.fetch(address, HEADER, 1)[0]
        assert header["steps"] < 600, "the streams ended before their runner was stopped"

        def all_ended() -> bool:
            words = gpu.fetch(address + int(header["status_offset"]), STATUS, STREAMS)["word"]
            states = [unpack_status(word)[1] for word in words.tolist()]
            return states == [SlotState.DECODE_COMPLETED] * STREAMS

        wait_until(all_ended, "all streams end")
        assert is_stopped(runner)
        tokens = int(gpu.fetch(address, HEADER, 1)[0]["generated_tokens"])
        assert tokens == STREAMS * 600 > int(header["generated_tokens"])
    os.kill(runner.pid, signal.SIGCONT)
    runner.stdin.write("\n")
    runner.stdin.flush()
    assert int(runner.stdout.readline()) == STREAMS
    assert runner.wait(timeout=30) == 0
