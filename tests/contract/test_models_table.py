"""`blink-server models` against a server that runs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx

from blink_server.process import Process
from blink_server.testing.eventually import eventually
from blink_server.testing.fake_repository import write_fake_version
from blink_server.testing.server_process import ServerProcess
from blink_server.testing.stream_client import EventStream

Start = Callable[..., Awaitable[ServerProcess]]


async def models(*arguments: str, runtime: Path, status: int = 0) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "blink_server", "models", *arguments),
        f"--runtime-dir={runtime}",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == status, output.decode()
    return output.decode()


async def test_the_table_its_json_and_its_live_form(start: Start, repository: Path) -> None:
    write_fake_version(repository, token_seconds=0.2)
    (write_fake_version(repository, "broken") / "tokenizer.json").unlink()
    server = await start()
    url = await server.ready()
    body = {"model": "echo", "prompt": "?", "max_tokens": 500, "stream": True}
    stream = await EventStream.open(url, "/v1/completions", body)

    def echo(table: str) -> list[str]:
        (line,) = (line for line in table.splitlines() if line.startswith("echo"))
        return line.split()

    # A worker that is slow to answer is counted as it was.
    table = await eventually(
        lambda: models(runtime=server.runtime), lambda table: echo(table)[4] == "1"
    )
    assert echo(table)[:3] == ["echo", "1", "READY"]
    assert "\nbroken:1: config.json: tokenizer.file: is 'tokenizer.json'; names a file" in table
    rows = json.loads(await models("--json", runtime=server.runtime))
    assert {row["model"]: (row["state"], row["requests"]) for row in rows} == {
        "broken": ("UNAVAILABLE", 0),
        "echo": ("READY", 1),
    }
    lines: asyncio.Queue[str] = asyncio.Queue()
    command = [*(sys.executable, "-m", "blink_server", "models", "--json", "--watch")]
    live = await Process.start(
        [*command, f"--runtime-dir={server.runtime}"],
        env=os.environ,
        on_line=lines.put_nowait,
    )
    first, second = [json.loads(await lines.get()) for _ in range(2)]
    assert [row["model"] for row in first] == [row["model"] for row in second]
    await live.terminate(10.0)
    stream.close()


async def test_the_live_table_follows_until_it_is_interrupted(
    start: Start, repository: Path
) -> None:
    directory = write_fake_version(repository)
    server = await start("--settle-secs=0")
    await server.ready()
    lines: asyncio.Queue[str] = asyncio.Queue()
    live = await Process.start(
        [
            *(sys.executable, "-m", "blink_server", "models", "--watch"),
            f"--runtime-dir={server.runtime}",
        ],
        env={**os.environ, "COLUMNS": "80", "FORCE_COLOR": "1"},
        on_line=lines.put_nowait,
    )

    async def shown(*words: str) -> None:
        async with asyncio.timeout(60):
            while True:
                line = await lines.get()
                if all(word in line for word in words):
                    return

    await shown("echo", "READY")
    (directory / "tokenizer.json").unlink()
    await shown("echo:1", ": reload: ", "tokenizer.file")
    live.signal(signal.SIGINT)
    assert (await asyncio.wait_for(live.wait(), 60)).code == 0


async def test_load_and_unload_by_the_server_s_user(start: Start, repository: Path) -> None:
    write_fake_version(repository)
    server = await start("--model-control=explicit", "--settle-secs=0")
    await server.ready()
    await models("load", "echo", runtime=server.runtime)
    rows = json.loads(await models("--json", runtime=server.runtime))
    assert [row["state"] for row in rows] == ["READY"]
    await models("load", "echo", "--force", '--config={"source": {}}', runtime=server.runtime)
    await models("unload", "echo", runtime=server.runtime)
    wrong = await models("load", "echo", "--config={", runtime=server.runtime, status=1)
    assert wrong.startswith("error: --config is not JSON")
    unknown = await models("load", "nothing", runtime=server.runtime, status=1)
    assert unknown == "error: there is no model 'nothing'; echo exists\n"


async def test_without_a_server_it_says_so(short_path: Path) -> None:
    said = await models(runtime=short_path, status=1)
    assert said.startswith(f"error: no server listens on {short_path}/control.sock")


async def test_metrics_have_the_state_and_the_time_of_the_load(
    start: Start, repository: Path
) -> None:
    write_fake_version(repository)
    server = await start()
    url = await server.ready()
    async with httpx.AsyncClient(timeout=60) as client:
        lines = (await client.get(f"{url}/metrics")).text.splitlines()
    assert 'blink_model_state{model="echo",state="READY",version="1"} 1.0' in lines
    assert 'blink_model_state{model="echo",state="LOADING",version="1"} 0.0' in lines
    [load] = [line for line in lines if line.startswith("nv_model_load_duration_secs{")]
    assert float(load.rpartition(" ")[2]) > 0
