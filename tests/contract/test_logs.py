"""The logs of a whole server: one form in all of its processes, and a level that can be changed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx

from blink_server.testing.eventually import eventually
from blink_server.testing.fake_repository import write_fake_version
from blink_server.testing.server_process import ServerProcess

Start = Callable[..., Awaitable[ServerProcess]]


async def log_level(level: str, runtime: Path) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "blink_server", "log-level", level, f"--runtime-dir={runtime}"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return process.returncode, output.decode()


async def test_every_line_of_every_process_is_an_object(start: Start, repository: Path) -> None:
    write_fake_version(repository)
    server = await start("--log-format=json")
    url = await server.ready()
    runner, worker = server.runner(), server.workers()[0]
    os.kill(runner.pid, signal.SIGKILL)
    os.kill(worker.pid, signal.SIGKILL)  # gunicorn has to tell of it
    told = json.loads(await server.line("was sent SIGKILL"))
    assert (told["logger"], told["level"]) == ("gunicorn.error", "error")
    await server.line("UNAVAILABLE")
    async with httpx.AsyncClient(timeout=60) as client:
        assert (await client.get(f"{url}/health/live")).status_code == 200
    assert await server.stop() == 0
    begun = next(place for place, line in enumerate(server.lines) if line.startswith("{"))
    entries = [json.loads(line) for line in server.lines[begun:] if line.startswith("{")]
    others = [line for line in server.lines[begun:] if not line.startswith("{")]
    assert {"time", "level", "logger", "process", "message"} <= set.intersection(*map(set, entries))
    assert not [line for line in others if " WARNING " in line or " ERROR " in line]


async def test_the_level_of_a_running_server_can_be_changed(start: Start, repository: Path) -> None:
    write_fake_version(repository)
    server = await start()
    url = await server.ready()
    assert await log_level("error", server.runtime) == (0, "the server logs from error up\n")
    quiet = len(server.lines)
    write_fake_version(repository, "second")
    async with httpx.AsyncClient(timeout=60) as client:
        await eventually(
            lambda: client.get(f"{url}/v1/models/second"), lambda reply: reply.status_code == 200
        )
    assert not [line for line in server.lines[quiet:] if "second:1 READY" in line]
    status, _ = await log_level("info", server.runtime)
    assert status == 0
    write_fake_version(repository, "third")
    await server.line("third:1 READY", after=quiet)


async def test_a_level_that_is_none_and_a_server_that_is_none(short_path: Path) -> None:
    status, output = await log_level("loud", short_path)
    assert status == 2
    assert "'loud' is not one of" in output
    status, output = await log_level("info", short_path)
    assert status == 1
    assert "no server listens on" in output
