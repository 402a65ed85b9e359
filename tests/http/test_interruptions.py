"""Requests whose time is over, and requests for a version that others make way for."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from blink_server.backend import TokenEvent
from blink_server.errors import Unavailable
from blink_server.http.model_entry import ServerState
from blink_server.http.settings import ServerSettings
from blink_server.repository.harness import State
from blink_server.testing.fake_backend import events

GONE = Unavailable("the server has shut down")


def endless(worker: Any) -> Any:
    """A session that gives "Hello" and then nothing more."""
    first = worker.tokenizer.encode("Hello", add_special_tokens=False)
    return worker.serve(lambda request: [TokenEvent(first), asyncio.Event()])


def interrupt(worker: Any) -> None:
    worker.directory.interrupt([entry.key for entry in worker.directory.entries], GONE)


@pytest.mark.parametrize("choices", [1, 2])
async def test_a_stream_ends_with_finish_reasons_and_the_error(worker: Any, choices: int) -> None:
    endless(worker)
    body = {"model": "tiny", "prompt": "x", "stream": True, "n": choices}
    task, sent = worker.open("/v1/completions", body)
    for index in range(choices):
        await sent.until(b'"index": %d' % index)
    interrupt(worker)
    await task
    *frames, error, done = [
        frame.removeprefix("data: ") for frame in sent.body.decode().split("\n\n") if frame
    ]
    assert done == "[DONE]"
    assert json.loads(error)["error"]["message"] == "the server has shut down"
    found = [choice for frame in frames for choice in json.loads(frame)["choices"]]
    ends = {choice["index"]: choice["finish_reason"] for choice in found}
    assert ends == dict.fromkeys(range(choices), "length")


async def test_a_whole_answer_becomes_an_error_that_says_to_come_back(worker: Any) -> None:
    session = endless(worker)
    request = asyncio.create_task(worker.complete())
    await session.attempted(1)
    interrupt(worker)
    result = await request
    assert result.status_code == 503
    assert result.json["error"]["message"] == "the server has shut down"
    assert result.headers["retry-after"]


async def test_what_has_ended_by_itself_is_not_touched(worker: Any) -> None:
    worker.serve("ok")
    with worker.directory.lease("tiny"):
        interrupt(worker)
    assert (await worker.complete()).status_code == 200


async def test_other_endpoints_go_on(worker: Any) -> None:
    gate = asyncio.Event()
    session = worker.serve(lambda request: [TokenEvent([50]), gate, *events([51])])
    request = asyncio.create_task(worker.complete())
    await session.attempted(1)
    worker.directory.interrupt([replace(worker.directory.entries[0].key, epoch=7)], GONE)
    gate.set()
    assert (await request).status_code == 200


async def begun(worker: Any) -> asyncio.Task[Any]:
    """A request that has looked for its model, and waits if it has to."""
    looked, find = asyncio.Event(), worker.directory.find

    def note(name: str) -> Any:
        looked.set()
        return find(name)

    worker.directory.find = note
    request = asyncio.create_task(worker.complete())
    await looked.wait()
    return request


def awaited(worker: Any) -> Any:
    return replace(worker.entry(None, version=2, state=State.UNAVAILABLE), awaited=True)


async def test_requests_wait_for_a_version_that_others_made_way_for(worker: Any) -> None:
    worker.directory.publish([awaited(worker)])
    request = await begun(worker)
    worker.directory.publish([replace(awaited(worker), state=State.LOADING, reason="")])
    worker.directory.publish([worker.entry(worker.session("new"), version=2)])
    assert (await request).json["choices"][0]["text"] == "new"


async def test_they_do_not_wait_while_something_serves(worker: Any) -> None:
    serving = worker.entry(worker.session("old"))
    worker.directory.publish([serving, awaited(worker)])
    assert (await worker.complete()).json["choices"][0]["text"] == "old"


@pytest.mark.parametrize("end", ["late", "refused", "shutdown"])
async def test_they_hear_why_it_does_not_come(worker: Any, end: str) -> None:
    worker.settings = ServerSettings(awaited_seconds=0.0 if end == "late" else 60.0)
    worker.directory.publish([awaited(worker)])
    request = await begun(worker)
    if end == "refused":
        worker.directory.publish([replace(awaited(worker), awaited=False)])
    elif end == "shutdown":
        worker.directory.publish([awaited(worker)], server=ServerState.DRAINING)
    result = await request
    assert result.status_code == 503
    expected = "shutting down" if end == "shutdown" else "out of luck"
    assert expected in result.json["error"]["message"]
