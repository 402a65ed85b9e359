"""Requests while a model's endpoint closes, changes or is away."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from blink_server.backend import FinishReason, TokenEvent
from blink_server.http.model_entry import ServerState
from blink_server.http.settings import ServerSettings
from blink_server.repository.harness import State
from blink_server.testing.fake_backend import answer, events

CLOSED = events([], reason=FinishReason.CLOSED)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_that_never_ran_goes_to_the_next_endpoint(
    worker: Any, stream: bool
) -> None:
    new = worker.session("from the new one")

    def close(request: Any) -> Any:
        worker.directory.publish([worker.entry(new, epoch=2)])
        return CLOSED

    old = worker.session(close)
    worker.directory.publish([worker.entry(old)])
    result = await worker.complete("Hello", stream=stream)
    assert result.status_code == 200
    assert (len(old.requests), len(new.requests)) == (1, 1)
    assert old.requests[0].prompt_ids == new.requests[0].prompt_ids


async def test_a_submit_that_an_endpoint_refuses_waits_for_the_next(worker: Any) -> None:
    old, new = worker.session("old"), worker.session("new")
    old.shut()
    worker.directory.publish([worker.entry(old)])
    request = asyncio.create_task(worker.complete("Hello"))
    await old.attempted(1)
    worker.directory.publish([worker.entry(new, epoch=2)])
    assert (await request).json["choices"][0]["text"] == "new"


async def test_another_version_encodes_the_prompt_anew(worker: Any) -> None:
    new = worker.session("ok")

    def close(request: Any) -> Any:
        worker.directory.publish([worker.entry(new, version=2, template="new template")])
        return CLOSED

    worker.serve(close)
    assert (await worker.chat("Hello")).status_code == 200
    assert worker.tokenizer.decode(new.requests[0].prompt_ids) == "new template"


async def test_only_the_choices_that_never_ran_are_resubmitted(worker: Any, frames: Any) -> None:
    new = worker.session("new")

    def respond(request: Any) -> Any:
        if request.request_id.endswith("-1"):
            worker.directory.publish([worker.entry(new, epoch=2)])
            return CLOSED
        return answer(worker.tokenizer, "old", eos=2)(request)

    old = worker.serve(respond)
    body = (await worker.complete("Hello", n=2)).json
    assert [choice["text"] for choice in body["choices"]] == ["old", "new"]
    assert (len(old.requests), len(new.requests)) == (2, 1)


async def test_what_has_run_is_never_run_again(worker: Any) -> None:
    session = worker.serve(
        lambda request: [TokenEvent([50]), TokenEvent([], None, FinishReason.CLOSED)]
    )
    assert (await worker.complete()).status_code == 500
    assert len(session.requests) == 1


async def test_no_next_endpoint_in_time_is_503(worker: Any) -> None:
    worker.settings = ServerSettings(retry_seconds=0)
    worker.serve(lambda request: CLOSED)
    result = await worker.complete()
    assert result.status_code == 503
    assert result.headers["retry-after"]


async def test_a_model_that_went_away_in_between_says_why(worker: Any) -> None:
    def die(request: Any) -> Any:
        worker.directory.publish([worker.entry(None, state=State.UNAVAILABLE)])
        return CLOSED

    worker.serve(die)
    result = await worker.complete()
    assert result.status_code == 503
    assert "out of luck" in result.json["error"]["message"]


@pytest.mark.parametrize("state", [state for state in State if state is not State.READY])
async def test_a_model_that_is_not_ready_is_503_with_its_state(worker: Any, state: State) -> None:
    session = worker.session("ok")
    worker.directory.publish([worker.entry(session, state=state)])
    result = await worker.complete()
    assert result.status_code == 503
    assert state.lower() in result.json["error"]["message"]
    assert result.headers["retry-after"]
    assert not session.requests


async def test_a_server_that_shuts_down_takes_no_requests(worker: Any) -> None:
    session = worker.session("ok")
    worker.directory.publish([worker.entry(session)], server=ServerState.DRAINING)
    assert (await worker.complete()).status_code == 503


async def test_an_endpoint_is_released_when_its_last_stream_has_ended(worker: Any) -> None:
    gate = asyncio.Event()
    worker.serve(lambda request: [TokenEvent([50]), gate, *events([51])])
    released: asyncio.Queue[Any] = asyncio.Queue()
    worker.directory.on_released(released.put_nowait)
    old = worker.directory.entries[0].key
    body = {"model": "tiny", "prompt": "x", "stream": True}
    task, sent = worker.open("/v1/completions", body)
    await sent.until(b"data: ")
    worker.directory.publish([worker.entry(worker.session("ok"), epoch=2)])
    assert released.empty()
    gate.set()
    assert await released.get() == old
    await task
    assert sent.body.endswith(b"data: [DONE]\n\n")
