"""A newest version that does not load, on disk with lower ones that do: whole servers."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest

from blink_server.control_client import ask
from blink_server.model_rows import ModelRow, from_columns
from blink_server.testing.eventually import eventually
from blink_server.testing.fake_repository import token_ids, write_fake_version
from blink_server.testing.server_process import ServerProcess
from blink_server.testing.tiny_repository import write_json

Start = Callable[..., Awaitable[ServerProcess]]
SETTLE = "--settle-secs=0.2"


async def rows(server: ServerProcess) -> dict[int, ModelRow]:
    answer = await ask(server.runtime / "control.sock", "index")
    return {row.version: row for row in from_columns(answer.rows)}


async def complete(url: str, **body: object) -> httpx.Response:
    async with httpx.AsyncClient(timeout=60) as client:
        return await client.post(f"{url}/v1/completions", json={"prompt": "?", **body})


@pytest.mark.parametrize("mode", ["watch", "none", "explicit"])
async def test_a_server_that_starts_with_a_broken_newest_version_serves_the_last_good_one(
    start: Start, repository: Path, mode: str
) -> None:
    for version in (1, 2):
        write_fake_version(repository, version=version, answer=str(version))
    newest = write_fake_version(repository, version=3, exit_code=3)
    (write_fake_version(repository, version=4) / "tokenizer.json").unlink()
    asked = ["--load-model=echo"] if mode == "explicit" else []
    server = await start(SETTLE, f"--model-control={mode}", *asked)
    url = await server.ready()
    reply = await complete(url, max_tokens=1)  # the only model is the default
    assert (reply.status_code, reply.json()["choices"][0]["text"]) == (200, "2")
    found = await rows(server)
    assert found[1].reason == "not loaded"
    assert found[2].state == "READY"
    assert "exit code 3" in found[3].reason
    assert "tokenizer.json" in found[4].reason
    write_json(newest / "new.tmp", {"answer": token_ids("3")})
    (newest / "new.tmp").replace(newest / "fake.json")
    # Its own retry takes the files as they are then, or a look at the repository does.
    await server.line("echo:3 READY")
    await server.line("echo:2 UNAVAILABLE: unloaded")
    reply = await complete(url, max_tokens=1)
    assert reply.json()["choices"][0]["text"] == "3"


async def test_a_good_version_that_is_removed_makes_room_for_the_one_below(
    start: Start, repository: Path
) -> None:
    write_fake_version(repository, version=1, answer="1")
    write_fake_version(repository, version=2, answer="2")
    write_fake_version(repository, version=3, exit_code=3)
    server = await start(SETTLE)
    url = await server.ready()
    shutil.rmtree(repository / "echo" / "2")
    await server.line("echo:2 UNAVAILABLE: unloaded")
    reply = await complete(url, max_tokens=1)
    assert (reply.status_code, reply.json()["choices"][0]["text"]) == (200, "1")


async def test_a_model_in_two_repositories_names_both_places(
    start: Start, repository: Path, short_path: Path
) -> None:
    write_fake_version(repository)
    other = write_fake_version(short_path / "more").parent
    server = await start(SETTLE, f"--model-repository={short_path / 'more'}")
    url = await server.ready()
    reply = await complete(url, model="echo")
    message = reply.json()["error"]["message"]
    assert reply.status_code == 503
    assert str(repository / "echo") in message
    assert str(other) in message
    shutil.rmtree(other)
    await server.line("echo:1 READY")
    await eventually(  # a worker connects a moment later
        lambda: complete(url, model="echo", max_tokens=1), lambda reply: reply.status_code == 200
    )
