"""Models that are served because somebody asked for them, over the control channel."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx

from blink_server.control_client import ask
from blink_server.messages import Answer
from blink_server.model_rows import from_columns
from blink_server.testing.eventually import eventually
from blink_server.testing.fake_repository import write_fake_version
from blink_server.testing.server_process import ServerProcess
from blink_server.testing.stream_client import EventStream
from blink_server.testing.tiny_repository import write_json

Start = Callable[..., Awaitable[ServerProcess]]
EXPLICIT = ("--model-control=explicit", "--settle-secs=0.2")


async def complete(url: str, model: str) -> tuple[int, str]:
    body = {"model": model, "prompt": "?", "max_tokens": 1}
    async with httpx.AsyncClient(timeout=60) as client:
        reply = await client.post(f"{url}/v1/completions", json=body)
    return reply.status_code, reply.text


def states(answer: Answer) -> dict[str, tuple[str, str]]:
    return {
        f"{row.model}:{row.version}": (row.state, row.reason) for row in from_columns(answer.rows)
    }


async def test_only_what_is_asked_for_is_served(start: Start, repository: Path) -> None:
    write_fake_version(repository, "a")
    write_fake_version(repository, "b")
    (write_fake_version(repository, "broken") / "tokenizer.json").unlink()
    server = await start(*EXPLICIT, "--load-model=a")
    url = await server.ready()
    socket = server.runtime / "control.sock"
    assert (await complete(url, "a"))[0] == 200
    assert (await complete(url, "b"))[0] == 404
    before = states(await ask(socket, "index"))
    assert before == {
        "a:1": ("READY", ""),
        "b:1": ("UNAVAILABLE", "not loaded"),
        "broken:1": ("UNAVAILABLE", "not loaded"),
    }
    assert (await ask(socket, "load", model="b")).outcome == "done"
    assert (await complete(url, "b"))[0] == 200
    failed = await ask(socket, "load", model="broken")
    assert failed.outcome == "failed"
    assert "tokenizer.json" in failed.error
    await server.line("nothing to load: broken has no valid version; broken:1: ")
    unknown = await ask(socket, "load", model="brokn")
    assert unknown.outcome == "unknown"
    assert unknown.error == "there is no model 'brokn'; did you mean 'broken'?"
    assert (await ask(socket, "unload", model="nothing")).error == (
        "there is no model 'nothing'; a, b, broken exist"
    )
    assert (await ask(socket, "unload", model="a")).outcome == "done"
    await server.line("a:1 UNAVAILABLE: unloaded")
    await eventually(lambda: complete(url, "a"), lambda reply: reply[0] == 404)
    assert (await ask(socket, "load", model="a")).outcome == "done"
    assert (await complete(url, "a"))[0] == 200


async def test_a_load_takes_changes_a_config_and_force(start: Start, repository: Path) -> None:
    directory = write_fake_version(repository)
    server = await start(*EXPLICIT, "--load-model=*")
    await server.ready()
    socket = server.runtime / "control.sock"
    [row] = from_columns((await ask(socket, "index")).rows)
    assert (row.epoch, row.since > 0, row.load_seconds > 0) == (1, True, True)
    await ask(socket, "load", model="echo")  # nothing has changed
    assert [row.epoch for row in from_columns((await ask(socket, "index")).rows)] == [1]
    await ask(socket, "load", model="echo", force=True)
    assert [row.epoch for row in from_columns((await ask(socket, "index")).rows)] == [2]
    await ask(socket, "load", model="echo", config={"limits": {"context_length": 64}})
    config = json.loads((server.runtime / "runner-3" / "config.json").read_text())
    assert config["limits"]["context_length"] == 64
    wrong = await ask(socket, "load", model="echo", config={"limits": {"context_length": 0}})
    assert wrong.outcome == "failed"
    assert "limits.context_length" in wrong.error
    assert (await ask(socket, "load", model="echo", config={})).outcome == "done"
    write_json(directory / "fake.json", {"exit_code": 4})
    failed = await ask(socket, "load", model="echo")
    assert "exit code 4" in failed.error
    [row] = from_columns((await ask(socket, "index")).rows)
    assert row.state == "READY"
    assert "exit code 4" in row.reason


async def test_an_override_may_name_neither_plugins_nor_places(
    start: Start, repository: Path
) -> None:
    write_fake_version(repository)
    server = await start(*EXPLICIT, "--load-model=echo")
    url = await server.ready()
    socket = server.runtime / "control.sock"
    for config, word in (
        ({"backend": "other"}, "plugins are chosen"),
        ({"tokenizer": {"name": "other"}}, "plugins are chosen"),
        ({"chat_template": "../../secret"}, "without '..'"),
        ({"tokenizer": {"file": "/etc/passwd"}}, "relative to the version directory"),
    ):
        answer = await ask(socket, "load", model="echo", config=config)
        assert answer.outcome == "failed"
        assert word in answer.error
        assert (await complete(url, "echo"))[0] == 200


async def test_without_explicit_mode_nobody_may(start: Start, repository: Path) -> None:
    write_fake_version(repository)
    server = await start()
    await server.ready()
    for action in ("load", "unload"):
        answer = await ask(server.runtime / "control.sock", action, model="echo")
        assert answer.outcome == "refused"
        assert "--model-control explicit" in answer.error


async def test_load_model_needs_explicit_mode(start: Start, repository: Path) -> None:
    server = await start("--load-model=echo")
    assert await server.exit() == 1
    assert "--model-control explicit" in await server.line("error:")


async def test_requests_in_flight_are_counted_over_all_workers(
    start: Start, repository: Path
) -> None:
    write_fake_version(repository, token_seconds=0.2)
    server = await start("--workers=2")
    url = await server.ready()
    body = {"model": "echo", "prompt": "?", "max_tokens": 500, "stream": True}
    streams = [await EventStream.open(url, "/v1/completions", body) for _ in range(5)]
    # A worker that is slow to answer is counted as it was.
    await eventually(
        lambda: ask(server.runtime / "control.sock", "index", usage=True),
        lambda answer: [row.requests for row in from_columns(answer.rows)] == [5],
    )
    for stream in streams:
        stream.close()
