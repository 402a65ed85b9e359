"""A client that goes away: the ASGI server cancels the request's task."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from blink_server.backend import TokenEvent
from blink_server.testing.fake_backend import events

PATHS = ["/v1/completions", "/v1/chat/completions"]


def body(path: str, **fields: Any) -> dict[str, Any]:
    prompt = (
        {"prompt": "x"} if path == PATHS[0] else {"messages": [{"role": "user", "content": ""}]}
    )
    return {"model": "tiny", **prompt, **fields}


async def cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("path", PATHS)
async def test_a_plain_request_frees_its_slots(worker: Any, path: str, n: int) -> None:
    session = worker.serve(lambda request: [TokenEvent([50]), asyncio.Event()])
    task, _ = worker.open(path, body(path, n=n))
    await session.attempted(n)
    await cancelled(task)
    assert all(stream.cancelled.is_set() for stream in session.streams)
    assert session.in_flight == 0


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("path", PATHS)
async def test_a_stream_frees_its_slots(worker: Any, path: str, n: int) -> None:
    session = worker.serve(lambda request: [TokenEvent([50]), asyncio.Event()])
    task, sent = worker.open(path, body(path, n=n, stream=True))
    await sent.until(b"data: ")
    await cancelled(task)
    assert all(stream.cancelled.is_set() for stream in session.streams)
    assert session.in_flight == 0


async def test_a_stream_whose_start_cannot_be_sent_frees_its_slot(worker: Any) -> None:
    session = worker.serve(lambda request: [TokenEvent([50]), asyncio.Event()])
    task, sent = worker.open(PATHS[0], body(PATHS[0], stream=True), blocked=True)
    await sent.blocking.wait()
    assert session.in_flight == 1
    await cancelled(task)
    assert session.in_flight == 0


async def test_other_streams_go_on(worker: Any) -> None:
    gate = asyncio.Event()
    session = worker.serve(lambda request: [TokenEvent([50]), gate, *events([51, 52, 2])])
    first, first_sent = worker.open(PATHS[0], body(PATHS[0], stream=True))
    second, second_sent = worker.open(PATHS[0], body(PATHS[0], stream=True))
    await first_sent.until(b"data: ")
    await second_sent.until(b"data: ")
    await cancelled(first)
    assert session.streams[0].cancelled.is_set()
    gate.set()
    await second
    assert not session.streams[1].cancelled.is_set()
    assert b'"finish_reason": "stop"' in second_sent.body
    assert second_sent.body.endswith(b"data: [DONE]\n\n")


async def test_a_request_that_waits_for_an_endpoint_holds_nothing_afterwards(worker: Any) -> None:
    session = worker.serve("never")
    session.shut()
    task, _ = worker.open(PATHS[0], body(PATHS[0]))
    await session.attempted(1)
    await cancelled(task)
    assert worker.directory.leases(worker.directory.entries[0].key) == 0
