"""The frame of every runner, in processes that are started and spoken to as a server does."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from blink_server.backend import Endpoint, ModelVersion
from blink_server.messages import Ready
from blink_server.repository.runner_process import LoadError, MemoryRefusedError, RunnerProcess
from blink_server.testing.started_runner import running

SECONDS = 60.0

FRAME = """
import logging
import sys
from blink_server.backend import Endpoint
from blink_server.errors import InvalidRequest, MemoryRefused
from blink_server.runner_main import run_runner

def serve(channel):
    {serve}

sys.exit(run_runner(serve))
"""

UNTIL_COMMANDED = """
    channel.ready(Endpoint("mine", {"path": channel.environment.model}), 5)
    logging.getLogger("mine").info("told %s", next(channel.commands(), "nothing more"))
    return 7
"""


@contextlib.asynccontextmanager
async def runner_that(serve: str, directory: Path) -> AsyncIterator[RunnerProcess]:
    version = ModelVersion("m", 3, directory, {})
    argv = [sys.executable, "-c", FRAME.format(serve=serve)]
    async with running(argv, version) as runner:
        yield runner


async def test_serve_has_a_channel_and_its_result_is_the_status(tmp_path: Path) -> None:
    async with runner_that(UNTIL_COMMANDED, tmp_path) as runner:
        assert await runner.loaded(SECONDS) == Ready(Endpoint("mine", {"path": "m"}), 5)
        await runner.drain(1.0, SECONDS)
        ended = await asyncio.wait_for(runner.process.wait(), SECONDS)
    assert (ended.code, ended.last_line) == (7, "INFO mine: told Drain(deadline_seconds=1.0)")


async def test_sigterm_ends_the_commands_and_sigint_nothing(tmp_path: Path) -> None:
    async with runner_that(UNTIL_COMMANDED, tmp_path) as runner:
        await runner.loaded(SECONDS)
        runner.process.signal(signal.SIGINT)
        runner.process.signal(signal.SIGTERM)
        ended = await asyncio.wait_for(runner.process.wait(), SECONDS)
    assert (ended.code, ended.last_line) == (7, "INFO mine: told nothing more")


@pytest.mark.parametrize(
    ("raised", "told"), [("InvalidRequest", LoadError), ("MemoryRefused", MemoryRefusedError)]
)
async def test_a_blink_error_is_told_as_the_reason(
    raised: str, told: type[LoadError], tmp_path: Path
) -> None:
    async with runner_that(f"raise {raised}('no such file')", tmp_path) as runner:
        with pytest.raises(LoadError, match=r"^no such file$") as caught:
            await runner.loaded(SECONDS)
        ended = await asyncio.wait_for(runner.process.wait(), SECONDS)
    assert caught.type is told
    assert ended.code == 1
    assert ended.last_line == "ERROR blink_server.runner_main: cannot serve: no such file"


async def test_what_else_is_raised_ends_the_process_with_a_traceback(tmp_path: Path) -> None:
    async with runner_that("raise ValueError('a bug')", tmp_path) as runner:
        reason = r"^runner exited while loading: exit code 1 \(ValueError: a bug\)$"
        with pytest.raises(LoadError, match=reason):
            await runner.loaded(SECONDS)


def test_outside_of_a_server_it_says_so() -> None:
    found = {name: value for name, value in os.environ.items() if "BLINK" not in name}
    command = [sys.executable, "-c", FRAME.format(serve="return 0")]
    ended = subprocess.run(command, env=found, capture_output=True, text=True)
    assert ended.returncode == 1
    last_line = ended.stderr.splitlines()[-1]
    assert "BLINK_CONTROL_SOCKET is not set: runners are started by serve" in last_line
