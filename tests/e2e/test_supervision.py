"""Deaths, drains and full rings of a whole server, over the scripted engine in slow steps."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from blink_persistent.testing.scripted_version import write_scripted_version
from blink_server.testing.eventually import eventually
from blink_server.testing.server_process import ServerProcess
from blink_server.testing.stream_client import EventStream, RequestFailed, text_of

CHAT = "/v1/chat/completions"


class OpenAnswer:
    """A streamed chat whose first text has arrived."""

    def __init__(self, stream: EventStream, payloads: AsyncIterator[str]) -> None:
        self.stream = stream
        self._payloads = payloads
        self.chunks: list[dict[str, Any]] = []

    @classmethod
    async def open(cls, url: str, body: dict[str, Any]) -> OpenAnswer:
        stream = await EventStream.open(url, CHAT, {**body, "stream": True})
        answer = cls(stream, aiter(stream))
        while not answer.text:
            answer.chunks.append(json.loads(await anext(answer._payloads)))
        return answer

    @property
    def text(self) -> str:
        return "".join(text_of(c) for chunk in self.chunks for c in chunk.get("choices", []))

    async def rest(self) -> str:
        """The whole text. Raises RequestFailed where the stream breaks off."""
        async for payload in self._payloads:
            self.chunks.append(json.loads(payload))
        return self.text


async def whole_text(url: str, body: dict[str, Any]) -> str:
    async with httpx.AsyncClient(timeout=60) as client:
        reply = await client.post(url + CHAT, json=body)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["choices"][0]["message"]["content"])


async def until_answered(url: str, body: dict[str, Any]) -> str:
    """The same once it serves: a worker's own connection to a runner shows only in its answers."""
    async with httpx.AsyncClient(timeout=60) as client:
        reply = await eventually(
            lambda: client.post(url + CHAT, json=body), lambda reply: reply.status_code == 200
        )
    return str(reply.json()["choices"][0]["message"]["content"])


async def metric(url: str, name: str) -> float:
    async with httpx.AsyncClient(timeout=60) as client:
        text = (await client.get(f"{url}/metrics")).text
    lines = [line for line in text.splitlines() if line.startswith(name + "{")]
    return sum(float(line.split()[-1]) for line in lines)


@pytest.fixture
def slow(repository: Path) -> Path:
    """A version that takes 5 ms a token, with ranges for two workers and one to spare."""
    return write_scripted_version(repository, limits={"slots": 768}, step_microseconds=5000)


async def test_a_killed_worker_leaves_no_slot_taken_and_other_streams_whole(
    start: Callable[..., Any], slow: Path, chat_body: Callable[..., dict[str, Any]]
) -> None:
    server: ServerProcess = await start("--workers=2")
    url = await server.ready()
    expected = await whole_text(url, chat_body(max_tokens=300))
    # One range more than workers: unless ranges come back, the third successor finds none.
    for _ in range(3):
        victim, survivor = await streams_of_two_workers(server, url, chat_body(max_tokens=300))
        worker = server.worker_serving(victim.stream.port)
        before = len(server.lines)
        os.kill(worker.pid, signal.SIGKILL)
        await server.line(f"process {worker.pid} has given up range")
        await server.line("of the ring is free again", after=before)
        with pytest.raises(RequestFailed):
            await victim.rest()
        assert await survivor.rest() == expected
        victim.stream.close()
        survivor.stream.close()
    assert await until_answered(url, chat_body(max_tokens=300)) == expected
    assert server.runner(1).alive
    assert await server.stop() == 0


async def streams_of_two_workers(
    server: ServerProcess, url: str, body: dict[str, Any]
) -> tuple[OpenAnswer, OpenAnswer]:
    """Two streams that different workers serve, the one that has just begun first.

    The kernel decides which worker gets one; a worker that has just been started may be long in
    coming.
    """
    async with asyncio.timeout(60):
        before = await open_answer(url, body)
        own = server.worker_serving(before.stream.port)
        while True:
            latest = await open_answer(url, body)
            if server.worker_serving(latest.stream.port) != own:
                return latest, before
            before.stream.close()
            before = latest


async def open_answer(url: str, body: dict[str, Any]) -> OpenAnswer:
    while True:
        with contextlib.suppress(RequestFailed):  # a fresh worker may not have its session yet
            return await OpenAnswer.open(url, body)


async def test_a_killed_runner_ends_streams_with_an_error_and_comes_back(
    start: Callable[..., Any], slow: Path, chat_body: Callable[..., dict[str, Any]]
) -> None:
    server: ServerProcess = await start()
    url = await server.ready()
    expected = await whole_text(url, chat_body(max_tokens=20))
    answer = await OpenAnswer.open(url, chat_body(max_tokens=480))
    os.kill(server.runner(1).pid, signal.SIGKILL)
    await answer.rest()
    assert "runner of scripted:1 is gone" in answer.chunks[-1]["error"]["message"]
    answer.stream.close()
    gone = await server.line("scripted:1 UNAVAILABLE: runner exited: signal SIGKILL")
    await server.line("scripted:1 READY", after=server.lines.index(gone))
    assert await until_answered(url, chat_body(max_tokens=20)) == expected
    assert await server.stop() == 0


async def test_sigterm_serves_open_streams_to_their_end_and_leaves_nothing(
    start: Callable[..., Any],
    slow: Path,
    chat_body: Callable[..., dict[str, Any]],
    assert_nothing_left: Callable[[], None],
) -> None:
    server: ServerProcess = await start()
    url = await server.ready()
    expected = await whole_text(url, chat_body(max_tokens=200))
    answer = await OpenAnswer.open(url, chat_body(max_tokens=200))
    server.signal(signal.SIGTERM)
    assert await answer.rest() == expected
    answer.stream.close()
    assert await server.exit() == 0
    assert_nothing_left()


async def test_a_client_that_hangs_up_frees_its_row(
    start: Callable[..., Any], repository: Path, chat_body: Callable[..., dict[str, Any]]
) -> None:
    write_scripted_version(repository, limits={"max_rows": 1}, step_microseconds=5000)
    server: ServerProcess = await start()
    url = await server.ready()
    hanging = await OpenAnswer.open(url, chat_body(max_tokens=480))
    hanging.stream.close()
    # There is one row: this one is served only because the other has left it.
    await whole_text(url, chat_body("Hi", max_tokens=1))
    # A worker may notice later than the scheduler that its client is gone.
    await eventually(lambda: metric(url, "vllm:num_requests_running"), lambda count: count == 0)
    ended = await metric(url, "vllm:generation_tokens_total")
    assert ended < 480
    assert await server.stop() == 0


async def test_a_full_queue_is_refused_with_retry_after_and_serves_on(
    start: Callable[..., Any], repository: Path, chat_body: Callable[..., dict[str, Any]]
) -> None:
    limits = {"max_rows": 1, "slots": 512, "max_queue": 2}  # one waiting request for each range
    write_scripted_version(repository, limits=limits, step_microseconds=10_000)
    server: ServerProcess = await start()
    url = await server.ready()
    expected = await whole_text(url, chat_body(max_tokens=30))
    async with httpx.AsyncClient(timeout=60) as client:
        running = await OpenAnswer.open(url, chat_body(max_tokens=480))  # longer than the burst
        burst = [client.post(url + CHAT, json=chat_body(max_tokens=30)) for _ in range(4)]
        replies = await asyncio.gather(*burst)
    statuses = sorted(reply.status_code for reply in replies)
    assert statuses == [200, 503, 503, 503]
    for reply in replies:
        if reply.status_code == 503:
            assert int(reply.headers["Retry-After"]) >= 1
            assert reply.json()["error"]["message"]
        else:
            assert reply.json()["choices"][0]["message"]["content"] == expected
    assert (await running.rest()).startswith(expected)
    running.stream.close()
    assert await whole_text(url, chat_body(max_tokens=30)) == expected
    assert await server.stop() == 0


async def test_preempted_requests_give_the_same_answers(
    start: Callable[..., Any], repository: Path, chat_body: Callable[..., dict[str, Any]]
) -> None:
    # 24 blocks of 16 tokens: each answer takes 14, so that two do not fit together.
    write_scripted_version(repository, block_size=16, block_count=25, step_microseconds=200)
    server: ServerProcess = await start()
    url = await server.ready()
    bodies = [chat_body(f"Prompt {n}", max_tokens=200) for n in range(6)]
    alone = [await whole_text(url, body) for body in bodies]
    assert await asyncio.gather(*(whole_text(url, body) for body in bodies)) == alone
    assert await server.stop() == 0


async def test_a_hung_step_restarts_the_runner_and_says_which(
    start: Callable[..., Any], repository: Path, chat_body: Callable[..., dict[str, Any]]
) -> None:
    an_hour = 3_600_000_000
    limits = {"step_timeout_seconds": 0.5}
    write_scripted_version(repository, limits=limits, step_microseconds=an_hour)
    server: ServerProcess = await start()
    url = await server.ready()
    async with httpx.AsyncClient(timeout=60) as client:
        reply = await client.post(url + CHAT, json=chat_body("Hi", max_tokens=3))
    assert reply.status_code == 503
    line = await server.line("scripted:1 UNAVAILABLE")
    assert "no progress: the prefill step of 1 sequences" in line
    assert "in step" in await server.line("scripted.py")  # the engine thread's stack
    await server.line("scripted:1 READY", after=server.lines.index(line))
    assert await server.stop() == 0
