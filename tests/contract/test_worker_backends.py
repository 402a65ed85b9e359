"""Versions that the workers serve themselves, and plugins that hang, under a whole server."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from blink_server.testing.eventually import eventually
from blink_server.testing.server_process import ServerProcess
from blink_server.testing.tiny_repository import write_json
from blink_server.testing.tiny_tokenizer import CHAT_TEMPLATE, byte_level_tokenizer

PLUGINS = Path(__file__).parents[2] / "plugins"

HANGING = """
import asyncio, threading
from blink_server.hookspecs import hookimpl
from blink_server.worker_backend import WorkerBackend

class Hanging(WorkerBackend):
    def __init__(self, name):
        self.name = name

    async def generate(self, version, request):
        raise ZeroDivisionError("a secret")
        yield

    def estimate(self, version):
        if self.name == "hangs_early":
            threading.Event().wait()
        return 0

    async def connect(self, version, endpoint):
        if self.name == "hangs_late":
            await asyncio.Event().wait()
        return await super().connect(version, endpoint)

@hookimpl
def blink_backends():
    return [Hanging("hangs_early"), Hanging("hangs_late"), Hanging("raises")]
"""


def write_version(repository: Path, model: str, backend: str = "echo", **config: Any) -> Path:
    directory = repository / model / "1"
    directory.mkdir(parents=True)
    (directory / "tokenizer.json").write_text(byte_level_tokenizer(), encoding="utf-8")
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    fields = {
        "backend": backend,
        "limits": {"context_length": 256},
        "chat_template": "chat_template.jinja",
        "eos_token_ids": [2],
    }
    write_json(directory / "config.json", {**fields, **config})
    return directory


@pytest.fixture
async def server(short_path: Path) -> AsyncIterator[tuple[ServerProcess, Path]]:
    plugins, repository = short_path / "plugins", short_path / "repository"
    plugins.mkdir()
    shutil.copy(PLUGINS / "echo.py", plugins)
    (plugins / "hanging.py").write_text(HANGING, encoding="utf-8")
    write_version(repository, "echo", warmup=[{"prompt": "x"}])
    write_version(repository, "broken", "raises")
    write_version(repository, "early", "hangs_early")
    write_version(repository, "late", "hangs_late")
    server = await ServerProcess.start(
        repository,
        short_path / "run",
        "--workers=2",
        "--load-timeout-secs=1",
        "--settle-secs=0",
        "--reload-plugins",
        plugins=plugins,
    )
    yield server, short_path
    server.kill_everything()
    await server.exit()
    print(server.output)


async def test_workers_serve_versions_themselves_whatever_other_plugins_do(
    server: tuple[ServerProcess, Path],
) -> None:
    running, path = server
    url = await running.ready()
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        await check_echo(client)
        await check_defects(client, running)
        await check_change(client, path)
    assert await running.stop() == 0


async def check_echo(client: httpx.AsyncClient) -> None:
    body: dict[str, Any] = {"model": "echo", "prompt": "naïve 你好"}
    # A second is little on a busy machine; what has not loaded in it is tried again.
    reply = await eventually(
        lambda: client.post("/v1/completions", json=body), lambda reply: reply.status_code == 200
    )
    assert reply.json()["choices"][0]["text"] == "naïve 你好"
    assert reply.json()["choices"][0]["finish_reason"] == "stop"
    body = {"model": "echo", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
    reply = await eventually(
        lambda: client.post("/v1/chat/completions", json=body),
        lambda reply: reply.status_code == 200,
    )
    lines = [line.removeprefix("data: ") for line in reply.text.splitlines() if line]
    assert lines.pop() == "[DONE]"
    text = "".join(json.loads(line)["choices"][0]["delta"].get("content", "") for line in lines)
    assert text.startswith("user\nHi")
    both = 'nv_inference_request_success{model="echo",version="1"} 2.0'
    # A worker counts a moment after its answer.
    await eventually(lambda: client.get("/metrics"), lambda told: both in told.text)


async def check_defects(client: httpx.AsyncClient, running: ServerProcess) -> None:
    headers = {"X-Request-Id": "req-9"}
    body = {"model": "broken", "prompt": "x"}
    reply = await eventually(
        lambda: client.post("/v1/completions", json=body, headers=headers),
        lambda reply: reply.status_code != 503,
    )
    assert reply.status_code == 500
    assert "req-9" in reply.json()["error"]["message"]
    assert "secret" not in reply.text
    await running.line("request req-9 met a defect of plugin 'hanging'")
    await running.line("ZeroDivisionError: a secret")
    for model in ("early", "late"):
        reply = await client.post("/v1/completions", json={"model": model, "prompt": "x"})
        assert reply.status_code == 503
    await running.line("the backend 'hangs_early' has not answered after 1 s")
    await running.line("not loaded in a worker after 1.0 s")


async def check_change(client: httpx.AsyncClient, path: Path) -> None:
    """A changed plugin serves versions that are loaded later, and those alone."""
    file = path / "plugins" / "echo.py"
    code = file.read_text(encoding="utf-8")
    file.write_text(
        code.replace("yield TokenEvent([token_id])", "yield TokenEvent([token_id] * 2)")
    )
    write_version(path / "repository", "twice")
    reply = await eventually(lambda: ask(client, "twice"), lambda reply: reply.status_code == 200)
    assert reply.json()["choices"][0]["text"] == "aa"
    reply = await eventually(lambda: ask(client, "echo"), lambda reply: reply.status_code == 200)
    assert reply.json()["choices"][0]["text"] == "a"


async def ask(client: httpx.AsyncClient, model: str) -> httpx.Response:
    return await client.post("/v1/completions", json={"model": model, "prompt": "a"})


@pytest.mark.slow  # two whole servers, one after the other
async def test_workers_serve_on_through_a_provisioner_s_death(short_path: Path) -> None:
    repository, run = short_path / "repository", short_path / "run"
    plugins = short_path / "plugins"
    plugins.mkdir()
    shutil.copy(PLUGINS / "echo.py", plugins)
    write_version(repository, "echo", backend_options={"delay_seconds": 0.5})
    first = await ServerProcess.start(repository, run, "--settle-secs=0", plugins=plugins)
    successor = None
    try:
        url = await first.ready()
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            running = asyncio.create_task(ask_for(client, "abcdef"))
            first.signal(signal.SIGKILL)
            await first.exit()
            assert (await ask(client, "echo")).status_code == 200
            successor = await ServerProcess.start(
                repository, run, "--settle-secs=0", plugins=plugins
            )
            assert await successor.ready() == url
            for _ in range(3):
                assert (await ask(client, "echo")).status_code == 200
            assert (await running).json()["choices"][0]["text"] == "abcdef"
        assert await successor.stop() == 0
    finally:
        for server in filter(None, (successor, first)):
            server.kill_everything()
            print(server.output)


async def ask_for(client: httpx.AsyncClient, prompt: str) -> httpx.Response:
    return await client.post("/v1/completions", json={"model": "echo", "prompt": prompt})
