"""Whole servers on a GPU, with the scripted engine: who may stop, die, come and go."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from blink_persistent import _native
from blink_persistent.gpu.driver import Gpu
from blink_persistent.testing.gpu_server import (
    VOCABULARY,
    agents,
    continue_all,
    is_stopped,
    links,
    owners,
    stop_all,
    token_ids,
    write_scripted_gpu_version,
)
from blink_server.testing.server_process import ServerProcess
from blink_server.testing.stream_client import RequestFailed, StreamedAnswer, stream_answer

pytestmark = pytest.mark.gpu

Start = Callable[..., Awaitable[ServerProcess]]
COMPLETIONS = "/v1/completions"
STREAMS = 64
TOKENS = 600
STEP = 1000  # us
RULE = _native.ScriptedRule(VOCABULARY, -1, 0)


@pytest.fixture
async def serve(gpu_present: None, short_path: Path) -> AsyncIterator[Start]:
    """Starts servers on `short_path`'s repository; each leaves nothing on the GPU."""
    (short_path / "repository").mkdir()
    servers: list[ServerProcess] = []

    async def start(*arguments: str) -> ServerProcess:
        server = await ServerProcess.start(
            short_path / "repository", short_path / "run", "--settle-secs=0.05", *arguments
        )
        servers.append(server)
        return server

    yield start
    for server in servers:
        continue_all([*owners(server), *agents(server), *links(server)])
        server.kill_everything()
        await server.exit()
        print(server.output)  # shown where the test fails


@pytest.fixture
def repository(short_path: Path) -> Path:
    return short_path / "repository"


def prompt(number: int) -> list[int]:
    return [3 + number, 5, 7]


def continuation(number: int, tokens: int = TOKENS) -> list[int]:
    found: list[int] = _native.scripted_continuation(RULE, prompt(number), tokens)
    return found


async def ask(url: str, model: str, number: int, tokens: int = TOKENS, **on: Any) -> StreamedAnswer:
    body = {"model": model, "prompt": prompt(number), "max_tokens": tokens, "temperature": 0}
    return await stream_answer(url, COMPLETIONS, body, **on)


class Streams:
    """64 streams, each of which has its first text when `begun` returns."""

    def __init__(self, url: str, model: str, tokens: int = TOKENS) -> None:
        self._tokens = tokens
        self._begun = [asyncio.Event() for _ in range(STREAMS)]
        self.tasks = [
            asyncio.create_task(ask(url, model, n, tokens, on_text=lambda _, n=n: self._note(n)))
            for n in range(STREAMS)
        ]

    def _note(self, number: int) -> None:
        self._begun[number].set()

    async def begun(self) -> None:
        async with asyncio.timeout(60):
            await asyncio.gather(*(event.wait() for event in self._begun))

    async def check(self) -> None:
        """Every one ends, with the rule's answer."""
        async with asyncio.timeout(120):
            answers = await asyncio.gather(*self.tasks)
        for number, answer in enumerate(answers):
            assert token_ids(answer.text) == continuation(number, self._tokens)


async def steps(url: str, model: str) -> int:
    """What the worker knows of the GPU's own step counter."""
    async with httpx.AsyncClient(timeout=30) as client:
        text = (await client.get(f"{url}/metrics")).text
    pattern = rf'^blink_scheduler_steps_total{{.*model_name="{model}".*}} (\S+)$'
    found = re.search(pattern, text, re.M)
    assert found is not None, text
    return int(float(found[1]))


async def until_served(url: str, model: str) -> None:
    """Return when it answers as it should, whatever has happened before."""
    async with asyncio.timeout(90):
        while True:
            try:
                answer = await ask(url, model, 1, tokens=5)
            except RequestFailed:
                await asyncio.sleep(0.05)
            else:
                assert token_ids(answer.text) == continuation(1, 5)
                return


async def test_versions_share_the_gpu_and_give_it_back(serve: Start, repository: Path) -> None:
    with Gpu() as gpu:
        before = gpu.free_bytes()
        for model in ("a", "b"):
            write_scripted_gpu_version(repository, model, step_microseconds=STEP)
        server = await serve()
        url = await server.ready()
        assert (len(owners(server)), len(agents(server)), len(links(server))) == (1, 2, 2)
        for model in ("a", "b"):
            answer = await ask(url, model, 1)
            assert token_ids(answer.text) == continuation(1)
        assert gpu.free_bytes() < before
        assert await server.stop() == 0
        assert owners(server) == agents(server) == []
        assert gpu.free_bytes() == before


async def test_unloaded_versions_leave_no_memory_behind(serve: Start, repository: Path) -> None:
    write_scripted_gpu_version(repository, "stays", step_microseconds=STEP)
    server = await serve()
    url = await server.ready()
    free = []
    with Gpu() as gpu:
        for model in ("first", "second", "third", "fourth"):
            write_scripted_gpu_version(repository, model)
            await server.line(f"{model}:1 READY")
            await until_served(url, model)
            shutil.rmtree(repository / model)
            await server.line(f"{model}:1 is given back")
            free.append(gpu.free_bytes())
    assert free[1:] == free[:1] * 3
    await until_served(url, "stays")


async def test_streams_go_on_while_provisioner_and_runner_are_stopped(
    serve: Start, repository: Path
) -> None:
    write_scripted_gpu_version(repository, "a", step_microseconds=2 * STEP)
    server = await serve()
    url = await server.ready()
    streams = Streams(url, "a")
    await streams.begun()
    stopped = [server.pid, *owners(server), *links(server)]
    assert len(stopped) == 3
    stop_all(stopped)
    assert not any(task.done() for task in streams.tasks)
    await streams.check()
    assert all(map(is_stopped, stopped))
    continue_all(stopped)
    await until_served(url, "a")
    assert "UNAVAILABLE" not in "".join(line for line in server.lines if "a:1 UNAVAIL" in line)


async def test_a_stopped_agent_delays_its_streams_and_nothing_else(
    serve: Start, repository: Path
) -> None:
    write_scripted_gpu_version(repository, "a", step_microseconds=STEP)
    server = await serve()
    url = await server.ready()
    streams = Streams(url, "a")
    await streams.begun()
    stop_all(agents(server))
    before = await steps(url, "a")
    await asyncio.sleep(2)  # what is measured: how far the GPU comes meanwhile
    assert await steps(url, "a") == before
    assert not any(task.done() for task in streams.tasks)
    continue_all(agents(server))
    while (now := await steps(url, "a")) == before:
        pass
    # All tokens take 0.6 s: everything was generated while the agent stood still.
    assert now >= TOKENS
    await streams.check()


async def test_a_killed_owner_is_named_and_started_again(serve: Start, repository: Path) -> None:
    for model in ("a", "b"):
        write_scripted_gpu_version(repository, model, step_microseconds=STEP)
    server = await serve()
    url = await server.ready()
    streams = Streams(url, "a")
    await streams.begun()
    (owner,) = owners(server)
    os.kill(owner, signal.SIGKILL)
    ended = await asyncio.gather(*streams.tasks, return_exceptions=True)
    assert all(isinstance(each, RequestFailed) for each in ended)
    for model in ("a", "b"):
        line = await server.line(f"{model}:1 UNAVAILABLE: runner exited")
        assert "the process of GPU 0 has ended" in line
    for model in ("a", "b"):
        await until_served(url, model)
    assert owners(server) != [owner]


async def test_a_killed_agent_is_named_and_followed_by_another(
    serve: Start, repository: Path
) -> None:
    write_scripted_gpu_version(repository, "a", step_microseconds=STEP)
    server = await serve()
    url = await server.ready()
    streams = Streams(url, "a")
    await streams.begun()
    (owner,), (agent,) = owners(server), agents(server)
    os.kill(agent, signal.SIGKILL)
    ended = await asyncio.gather(*streams.tasks, return_exceptions=True)
    assert all(isinstance(each, RequestFailed) for each in ended)
    await server.line("a:1: its agent ended: signal SIGKILL; another takes over")
    await until_served(url, "a")
    assert owners(server) == [owner]
    again = Streams(url, "a")
    await again.check()


async def test_a_version_is_swapped_under_streams_none_of_which_fails(
    serve: Start, repository: Path
) -> None:
    write_scripted_gpu_version(repository, "a", step_microseconds=STEP)
    server = await serve()
    url = await server.ready()
    swapped = asyncio.Event()

    async def keep_asking(number: int) -> int:
        count = 0
        while not swapped.is_set():
            answer = await ask(url, "a", number)
            assert token_ids(answer.text) == continuation(number)
            count += 1
        return count

    tasks = [asyncio.create_task(keep_asking(number)) for number in range(STREAMS)]
    write_scripted_gpu_version(repository, "a", 2, step_microseconds=STEP)
    await server.line("a:2 READY")
    await server.line("a:1 is given back")
    swapped.set()
    assert sum(await asyncio.gather(*tasks)) >= STREAMS
    parks = [float(each) for each in re.findall(r"parks took (\S+) ms", server.output)]
    print("longest park", max(parks), "ms")


async def test_the_host_drives_the_same_graphs_when_asked_to(
    serve: Start, repository: Path
) -> None:
    write_scripted_gpu_version(repository, "a", step_microseconds=STEP)
    write_scripted_gpu_version(repository, "b", step_microseconds=STEP, scheduler="host")
    server = await serve("--scheduler=host")
    url = await server.ready()
    assert agents(server) == []
    for model in ("a", "b"):
        await Streams(url, model).check()
    assert await server.stop() == 0
    assert owners(server) == []


async def test_both_kinds_of_scheduler_share_a_gpu(serve: Start, repository: Path) -> None:
    write_scripted_gpu_version(repository, "a", step_microseconds=STEP)
    write_scripted_gpu_version(repository, "b", step_microseconds=STEP, scheduler="host")
    server = await serve()
    url = await server.ready()
    assert len(agents(server)) == 1
    both = [Streams(url, model, 200) for model in ("a", "b")]
    for streams in both:
        await streams.check()
