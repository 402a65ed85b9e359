"""A repository that changes under a server with traffic: real processes, fake runners."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx

from blink_server.testing.eventually import eventually
from blink_server.testing.fake_repository import token_ids, write_fake_version
from blink_server.testing.server_process import ServerProcess
from blink_server.testing.stream_client import EventStream
from blink_server.testing.tiny_repository import write_json
from blink_server.testing.traffic import Outcome, Traffic

Start = Callable[..., Awaitable[ServerProcess]]
SETTLE = "--settle-secs=0.2"


def say(directory: Path, text: str, **options: object) -> None:
    """Change what a version answers, by a new file in the old one's place."""
    write_json(directory / "new.tmp", {"answer": token_ids(text), **options})
    (directory / "new.tmp").replace(directory / "fake.json")


async def ask(url: str, model: str = "echo", tokens: int = 1) -> tuple[int, str]:
    """(status, text or error message)."""
    body = {"model": model, "prompt": "?", "max_tokens": tokens}
    async with httpx.AsyncClient(timeout=60) as client:
        reply = await client.post(f"{url}/v1/completions", json=body)
    if reply.status_code == 200:
        return 200, reply.json()["choices"][0]["text"]
    return reply.status_code, reply.json()["error"]["message"]


async def until_gone(url: str, model: str = "echo") -> None:
    """A worker hears of it a moment after the log."""
    await eventually(lambda: ask(url, model), lambda reply: reply[0] == 404)


def assert_all_answered(outcomes: list[Outcome], *texts: str) -> None:
    assert {outcome.failure for outcome in outcomes} == {""}
    assert {outcome.text for outcome in outcomes} == set(texts)


async def test_models_and_versions_come_and_go(
    start: Start, repository: Path, short_path: Path
) -> None:
    server = await start(SETTLE)
    url = await server.ready()
    assert (await ask(url))[0] == 404
    aside = short_path / "aside"
    write_fake_version(aside, answer="1")
    (aside / "echo").rename(repository / "echo")
    await server.line("echo:1 READY")
    await eventually(lambda: ask(url), lambda reply: reply == (200, "1"))  # a worker connects
    traffic = Traffic.start(url, tokens=1)
    await traffic.until("1")
    write_fake_version(aside, version=2, answer="2")
    (aside / "echo" / "2").rename(repository / "echo" / "2")
    await server.line("echo:1 UNAVAILABLE: unloaded")
    assert_all_answered(await traffic.stop(), "1", "2")
    assert await ask(url) == (200, "2")
    await until_gone(url, "echo:1")
    (repository / "echo").rename(aside / "gone")
    await server.line("echo:2 UNAVAILABLE: unloaded")
    await until_gone(url)


async def test_changed_files_are_loaded_beside_what_serves_and_swapped(
    start: Start, repository: Path
) -> None:
    directory = write_fake_version(repository, answer="a", token_seconds=0.005)
    server = await start(SETTLE, "--workers=2")
    url = await server.ready()
    old = server.runner(1)
    traffic = Traffic.start(url)
    await traffic.until("aaaa")
    say(directory, "b", token_seconds=0.005)
    await server.line("echo:1 UNAVAILABLE: unloaded")
    assert not old.alive
    assert server.runner(2).alive
    for _ in range(8):
        assert await ask(url, tokens=4) == (200, "bbbb")
    assert_all_answered(await traffic.stop(), "aaaa", "bbbb")


async def test_a_failed_load_keeps_the_old_and_is_tried_again_when_files_change(
    start: Start, repository: Path
) -> None:
    directory = write_fake_version(repository, answer="a")
    server = await start(SETTLE)
    url = await server.ready()
    traffic = Traffic.start(url, tokens=1)
    say(directory, "b", exit_code=3)
    await server.line("echo:1 UNAVAILABLE: runner exited while loading: exit code 3")
    (directory / "config.json").rename(directory / "config.json~")
    await server.line("echo:1 cannot be loaded: config.json: is missing")
    assert (await ask(url)) == (200, "a")
    (directory / "config.json~").rename(directory / "config.json")
    say(directory, "c")
    os.utime(directory / "fake.json", (1e9, 1e9))  # older than all before
    await traffic.until("c")
    assert_all_answered(await traffic.stop(), "a", "c")


async def test_a_broken_model_json_changes_nothing_and_aliases_need_no_load(
    start: Start, repository: Path
) -> None:
    write_fake_version(repository, answer="a")
    server = await start(SETTLE)
    url = await server.ready()
    settings = repository / "echo" / "model.json"
    settings.write_text('{"aliases": ')
    await server.line("model.json: is not JSON")
    assert await ask(url) == (200, "a")
    write_json(settings, {"aliases": ["parrot"]})
    await eventually(lambda: ask(url, "parrot"), lambda reply: reply == (200, "a"))
    assert server.runner(1).alive
    assert not (server.runtime / "runner-2").exists()


async def test_a_repository_that_goes_away_takes_nothing_with_it(
    start: Start, repository: Path
) -> None:
    write_fake_version(repository, answer="a")
    server = await start(SETTLE, "--repository-polling=0.1")
    url = await server.ready()
    elsewhere = repository.with_name("elsewhere")
    os.rename(repository, elsewhere)  # noqa: PTH104
    await server.line("what serves goes on")
    assert await ask(url) == (200, "a")
    os.rename(elsewhere, repository)  # noqa: PTH104
    shutil.rmtree(repository / "echo")
    await server.line("echo:1 UNAVAILABLE: unloaded")


async def test_control_mode_none_takes_no_notice(start: Start, repository: Path) -> None:
    directory = write_fake_version(repository, answer="a")
    server = await start(SETTLE, "--model-control=none", "--repository-polling=0.1")
    url = await server.ready()
    shutil.rmtree(directory)
    # A model that is asked for a second is looked at ten times where it is watched.
    traffic = Traffic.start(url, tokens=1)
    for _ in range(20):
        await traffic.until("a")
    assert_all_answered(await traffic.stop(), "a")


async def test_a_stream_longer_than_the_drain_ends_with_a_word(
    start: Start, repository: Path
) -> None:
    directory = write_fake_version(repository, token_seconds=0.05)
    server = await start(SETTLE, "--drain-timeout-secs=0.2")
    url = await server.ready()
    body = {"model": "echo", "prompt": "?", "max_tokens": 500, "stream": True}
    events = await EventStream.open(url, "/v1/completions", body)
    payloads = aiter(events)
    await anext(payloads)
    shutil.rmtree(directory.parent)
    *_, last, error = [json.loads(payload) async for payload in payloads]
    assert last["choices"][0]["finish_reason"] == "length"
    assert error["error"]["message"] == "echo:1 was unloaded"
    events.close()
    await server.line("echo:1 UNAVAILABLE: unloaded")
    await until_gone(url)
