"""Whole servers whose versions share a GPU (one that is none): links, owner, and their deaths."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from blink_persistent.gpu.presence import gpus
from blink_persistent.testing.gpu_server import (
    owners,
    write_gpu_version,
    write_scripted_gpu_version,
)
from blink_persistent.testing.scripted_version import write_scripted_version
from blink_server.process import ProcessId
from blink_server.testing.eventually import eventually
from blink_server.testing.server_process import ServerProcess
from blink_server.testing.stream_client import EventStream, RequestFailed, text_of

PLUGIN = """
from blink_persistent.testing.fake_gpu import FakeGpuBackend
from blink_server.hookspecs import hookimpl

@hookimpl
def blink_backends(engines, samplers, transports):
    return [FakeGpuBackend(engines, samplers, transports)]
"""
COMPLETIONS = "/v1/completions"
SLOW = 5000  # us a step


def write_version(repository: Path, model: str, version: int = 1, **engine: Any) -> None:
    change_config(write_scripted_version(repository, model, version, **engine), backend="fake_gpu")


def change_config(directory: Path, **fields: Any) -> None:
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def body(model: str, tokens: int = 4) -> dict[str, Any]:
    return {"model": model, "prompt": "Hello", "max_tokens": tokens, "ignore_eos": True}


async def answer(url: str, model: str, tokens: int = 4) -> str:
    async with httpx.AsyncClient(timeout=60) as client:
        reply = await client.post(url + COMPLETIONS, json=body(model, tokens))
    assert reply.status_code == 200, reply.text
    return str(reply.json()["choices"][0]["text"])


async def stream(url: str, model: str, tokens: int) -> AsyncIterator[str]:
    """The texts of a streamed answer as they come. Raises RequestFailed."""
    asked = {**body(model, tokens), "stream": True}
    async for payload in await EventStream.open(url, COMPLETIONS, asked):
        chunk = json.loads(payload)
        if "error" in chunk:
            raise RequestFailed(chunk["error"]["message"])
        yield "".join(map(text_of, chunk["choices"]))


async def until_answered(url: str, model: str) -> str:
    """Its answer once it serves again."""
    async with httpx.AsyncClient(timeout=60) as client:
        reply = await eventually(
            lambda: client.post(url + COMPLETIONS, json=body(model)),
            lambda reply: reply.status_code == 200,
        )
    return str(reply.json()["choices"][0]["text"])


@pytest.fixture
async def serve(short_path: Path, repository: Path) -> AsyncIterator[Callable[..., Any]]:
    """Starts one server on `repository`, with the fake GPU's backend."""
    plugins = short_path / "plugins"
    plugins.mkdir(mode=0o700)
    (plugins / "fake_gpu_plugin.py").write_text(PLUGIN)
    servers: list[ServerProcess] = []

    async def start(*arguments: str) -> ServerProcess:
        server = await ServerProcess.start(
            repository, short_path / "run", *arguments, plugins=plugins
        )
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.kill_everything()
        await server.exit()
        print(server.output)  # shown where the test fails


@pytest.mark.skipif(gpus()[0] > 0, reason="this machine has a GPU")
def test_what_a_version_on_a_gpu_lacks_here_is_named(
    blink_server: Callable[..., str], repository: Path
) -> None:
    write_scripted_gpu_version(repository, "scripted")
    random = {"name": "cuda", "weights": "random", "model": "smollm2-135m", "device": "cuda:1"}
    write_gpu_version(repository, "random", engine=random)
    said = blink_server("check", str(repository), status=1)
    assert re.search(r"scripted/1/config.json: engine.name: .* needs .*(GPU|cuda)", said)
    assert re.search(r"random/1/config.json: engine.name: is 'cuda'; needs .*(GPU|torch)", said)


@pytest.mark.skipif(gpus()[0] > 0, reason="this machine has a GPU")
async def test_an_imported_version_is_refused_by_the_same_words_at_every_place(
    blink_server: Callable[..., str], serve: Callable[..., Any], repository: Path
) -> None:
    told = blink_server(
        *("import", "--random=smollm2-135m", "--engine=cuda", "--name=random"),
        f"--model-repository={repository}",
    )
    lacks = re.search(r"^note: this machine cannot serve it: (needs .*)$", told, re.M)
    assert lacks is not None
    assert lacks[1] in blink_server("check", str(repository), status=1)
    server: ServerProcess = await serve()
    assert lacks[1] in await server.line("  random:1  UNAVAILABLE")


async def test_versions_share_one_owner_which_leaves_with_the_last(
    serve: Callable[..., Any], repository: Path, assert_nothing_left: Callable[[], None]
) -> None:
    for model in ("a", "b"):
        write_version(repository, model)
    server: ServerProcess = await serve()
    url = await server.ready()
    assert len(owners(server)) == 1
    assert await answer(url, "a") == await answer(url, "b") != ""
    assert await server.stop() == 0
    assert_nothing_left()


async def test_a_version_answers_its_warm_up_before_it_is_ready(
    serve: Callable[..., Any], repository: Path
) -> None:
    write_version(repository, "a")
    change_config(repository / "a" / "1", warmup=[{"prompt": "Hello", "max_tokens": 4}])
    write_version(repository, "b")
    change_config(repository / "b" / "1", warmup=[{"prompt": "Hello" * 1000}])
    server: ServerProcess = await serve()
    url = await server.ready()
    assert "warmup[0]" in await server.line("  b:1  UNAVAILABLE")
    four = 'blink_scheduler_steps_total{model_name="a",version="1"} 4.0'
    async with httpx.AsyncClient(timeout=60) as client:
        # The scheduler shows its counts after the answer.
        await eventually(
            lambda: client.get(f"{url}/metrics"), lambda told: four in told.text.splitlines()
        )


@pytest.mark.slow
async def test_a_killed_link_takes_its_version_and_no_other(
    serve: Callable[..., Any], repository: Path
) -> None:
    for model in ("a", "b"):
        write_version(repository, model, step_microseconds=SLOW)
    server: ServerProcess = await serve()
    url = await server.ready()
    (owner,) = owners(server)
    links = {model: await link_of(server, model) for model in ("a", "b")}
    texts = stream(url, "b", 200)
    await anext(texts)
    os.kill(links["a"].pid, signal.SIGKILL)
    await server.line("a:1 UNAVAILABLE: runner exited: signal SIGKILL")
    assert "".join([text async for text in texts])
    assert await until_answered(url, "a")
    assert owners(server) == [owner]


async def link_of(server: ServerProcess, model: str) -> ProcessId:
    for record in server.runtime.glob("runner-*/runner.json"):
        facts = json.loads(record.read_text())
        if facts["model"] == model:
            return ProcessId(facts["pid"], facts["start_ticks"])
    raise AssertionError(f"no link of {model}")


async def test_a_killed_owner_is_named_and_started_again(
    serve: Callable[..., Any], repository: Path
) -> None:
    for model in ("a", "b"):
        write_version(repository, model, step_microseconds=SLOW)
    server: ServerProcess = await serve()
    url = await server.ready()
    expected = await answer(url, "a")
    texts = stream(url, "a", 480)
    await anext(texts)
    (owner,) = owners(server)
    os.kill(owner, signal.SIGKILL)
    with pytest.raises(RequestFailed):
        [text async for text in texts]
    for model in ("a", "b"):
        ended = await server.line(f"{model}:1 UNAVAILABLE: runner exited")
        assert "the process of GPU 0 has ended" in ended
    for model in ("a", "b"):
        assert await until_answered(url, model) == expected
    (successor,) = owners(server)
    assert successor != owner


@pytest.mark.slow
async def test_a_version_that_fails_leaves_the_others(
    serve: Callable[..., Any], repository: Path
) -> None:
    write_version(repository, "good")
    write_version(repository, "refused", fail="load")
    write_version(repository, "failing", fail="serve", after_tokens=3)
    server: ServerProcess = await serve()
    url = await server.ready()
    assert "memory: the scripted refusal" in await server.line("  refused:1  UNAVAILABLE")
    (owner,) = owners(server)
    await answer(url, "failing")
    assert "the scripted failure" in await server.line("failing:1 UNAVAILABLE: runner exited")
    assert await answer(url, "good")
    assert owners(server) == [owner]


@pytest.mark.slow
async def test_the_end_of_the_gpu_is_told_to_all(
    serve: Callable[..., Any], repository: Path
) -> None:
    write_version(repository, "good")
    write_version(repository, "deadly", fail="gpu", after_tokens=3)
    server: ServerProcess = await serve()
    url = await server.ready()
    await answer(url, "deadly")
    for model in ("good", "deadly"):
        line = await server.line(f"{model}:1 UNAVAILABLE: runner exited")
        assert "the scripted end of this GPU" in line
    assert await until_answered(url, "good")


@pytest.mark.slow
async def test_a_reloaded_version_drains_without_a_failed_stream(
    serve: Callable[..., Any], repository: Path
) -> None:
    write_version(repository, "a", step_microseconds=SLOW)
    server: ServerProcess = await serve("--settle-secs=0.05")
    url = await server.ready()
    streams = [stream(url, "a", 100) for _ in range(3)]
    for each in streams:
        await anext(each)
    (owner,) = owners(server)
    write_version(repository, "a", 2, step_microseconds=SLOW)
    await server.line("a:2 READY")
    for each in streams:
        assert "".join([text async for text in each])
    await server.line("a:1 UNAVAILABLE: unloaded")
    assert await answer(url, "a")
    assert owners(server) == [owner]
