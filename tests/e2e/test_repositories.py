"""Models of several repositories in service at once, each in a runner of its own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from blink_persistent.testing.scripted_version import write_scripted_version
from blink_server.testing.server_process import ServerProcess

PROMPTS = ("One", "Two words", "Here are three words")


async def answer(client: httpx.AsyncClient, model: str, prompt: str) -> str:
    body = {"model": model, "prompt": prompt, "max_tokens": 12, "temperature": 0}
    response = await client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    text: str = response.json()["choices"][0]["text"]
    return text


def threads_of(server: ServerProcess, number: int) -> tuple[str, int]:
    """Model and CPU threads of the `number`-th runner that was started."""
    process = Path(f"/proc/{server.runner(number).pid}")
    variables = (process / "environ").read_bytes().decode().split("\0")
    model = next(v for v in variables if v.startswith("BLINK_RUNNER_MODEL=")).partition("=")[2]
    arguments = (process / "cmdline").read_bytes().decode().split("\0")
    return model, int(arguments[arguments.index("--threads") + 1])


async def test_models_of_several_repositories_serve_at_once(
    start: Callable[..., Any],
    short_path: Path,
    repository: Path,
    copy_tiny: Callable[[str], Path],
    assert_nothing_left: Callable[[], None],
) -> None:
    copy_tiny("tiny")
    write_scripted_version(short_path / "more", "one")
    write_scripted_version(short_path / "others", "two", limits={"cpu_threads": 3})
    more = [f"--model-repository={short_path / name}" for name in ("more", "others")]
    server: ServerProcess = await start(*more)
    url = await server.ready()

    cores = len(os.sched_getaffinity(0))
    each = max(1, (cores - 3) // 2)
    threads = dict(threads_of(server, number) for number in (1, 2, 3))
    assert threads == {"tiny": each, "one": each, "two": 3}

    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        listed = (await client.get("/v1/models")).json()["data"]
        assert {model["id"] for model in listed} >= {"tiny", "one", "two"}
        asked = [(model, prompt) for model in ("tiny", "one", "two") for prompt in PROMPTS]
        alone = [await answer(client, *each) for each in asked]
        together = await asyncio.gather(*(answer(client, *each) for each in asked))
    assert together == alone
    # The rule of the scripted engine is one, that of the tiny model is its weights.
    assert alone[3:6] == alone[6:9]
    assert not set(alone[:3]) & set(alone[3:])
    assert await server.stop() == 0
    assert_nothing_left()


async def test_a_model_that_two_repositories_have_is_served_by_neither(
    start: Callable[..., Any], short_path: Path, repository: Path
) -> None:
    write_scripted_version(repository, "twice")
    write_scripted_version(repository, "once")
    write_scripted_version(short_path / "more", "twice")
    server: ServerProcess = await start(f"--model-repository={short_path / 'more'}")
    url = await server.ready()
    said = await server.line("two models have the name 'twice'")
    assert str(repository / "twice") in said
    assert str(short_path / "more" / "twice") in said
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        assert await answer(client, "once", "Hello")
        refused = await client.post("/v1/completions", json={"model": "twice", "prompt": "Hello"})
    assert refused.status_code == 503
    why = refused.json()["error"]["message"]
    assert str(repository / "twice") in why
    assert str(short_path / "more" / "twice") in why
    assert await server.stop() == 0
