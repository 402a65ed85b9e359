"""Viewers: all of the state, then what changes; nothing is read while nobody watches."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import blink_server.console.feed
from blink_server.backend import ModelVersion
from blink_server.console.feed import ConsoleFeed, Viewer
from blink_server.http.metrics import Metrics
from blink_server.http.model_entry import ModelEntry
from blink_server.http.models import ModelDirectory
from blink_server.repository.harness import State


def publish(directory: ModelDirectory, reason: str) -> None:
    version = ModelVersion("m", 1, Path("nowhere"), {})
    directory.publish([ModelEntry(version, 1, State.UNAVAILABLE, reason=reason)])


def parsed(event: bytes) -> tuple[str, dict[str, Any]]:
    name, data = event.decode().strip().split("\n")
    return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


async def next_of(events: AsyncIterator[bytes], name: str) -> dict[str, Any]:
    async with asyncio.timeout(20):
        while True:
            found, state = parsed(await anext(events))
            if found == name:
                return state


async def closed(*events: Any) -> None:
    for each in events:
        await each.aclose()


async def test_a_viewer_gets_everything_and_then_what_changes() -> None:
    directory = ModelDirectory()
    publish(directory, "broken")
    events = ConsoleFeed(directory, Metrics()).viewer().events()
    assert (await next_of(events, "state"))["models"]["m:1"]["reason"] == "broken"
    publish(directory, "still broken")
    change = await next_of(events, "change")
    while "models" not in change:
        change = await next_of(events, "change")
    assert change["models"] == {"m:1": {"reason": "still broken"}}
    await closed(events)


async def test_the_state_is_read_once_for_all_and_not_at_all_for_nobody() -> None:
    directory, reads = ModelDirectory(), []

    class Counting(ConsoleFeed):
        def _read(self) -> dict[str, Any]:
            reads.append(1)
            return super()._read()

    feed = Counting(directory, Metrics())
    assert not reads
    many = [feed.viewer().events() for _ in range(50)]
    for events in many:
        await next_of(events, "state")
    assert len(reads) < 50
    await closed(*many)
    count = len(reads)
    for _ in range(50):  # of the loop's turns: a task that still ran would read in one
        await asyncio.sleep(0)
    assert feed._task is None
    assert len(reads) == count


async def test_a_viewer_far_behind_is_given_everything_again() -> None:
    directory = ModelDirectory()
    publish(directory, "first")
    feed = ConsoleFeed(directory, Metrics())
    viewer: Viewer = feed.viewer()
    events = viewer.events()
    await next_of(events, "state")
    for number in range(100):
        viewer.offer(b"event: change\ndata: {}\n\n")
        publish(directory, str(number))
    feed._state = feed._read()
    state = await next_of(events, "state")
    assert state["models"]["m:1"]["reason"] == "99"
    await closed(events)


async def test_a_closed_feed_lets_its_viewers_go() -> None:
    feed = ConsoleFeed(ModelDirectory(), Metrics())
    events = feed.viewer().events()
    await next_of(events, "state")
    feed.close()
    async with asyncio.timeout(20):
        rest = [parsed(event)[0] async for event in events]
    assert rest[-1] == "bye"


async def test_a_viewer_who_has_stopped_reading_is_let_go_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blink_server.console.feed, "_LEAVE_SECONDS", 0)
    feed, stuck = ConsoleFeed(ModelDirectory(), Metrics()), asyncio.Event()

    async def request() -> None:
        async for _ in feed.viewer().events():
            stuck.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(request())
    await stuck.wait()
    feed.close()
    async with asyncio.timeout(20):
        await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()


async def test_a_state_that_cannot_be_read_ends_the_streams_and_is_read_again_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    feed = ConsoleFeed(ModelDirectory(), Metrics())
    events = feed.viewer().events()
    await next_of(events, "state")
    with monkeypatch.context() as broken:
        broken.setattr(feed, "_read", lambda: 1 / 0)
        await next_of(events, "bye")
    assert "ZeroDivisionError" in caplog.text
    again = feed.viewer().events()
    await next_of(again, "state")
    assert feed._task is not None
    await closed(events, again)


async def test_more_viewers_are_told_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    feed, naps = ConsoleFeed(ModelDirectory(), Metrics()), []
    turn = asyncio.sleep

    async def sleep(seconds: float) -> None:
        naps.append(seconds)
        await turn(0)

    monkeypatch.setattr(asyncio, "sleep", sleep)

    async def next_nap() -> float:
        naps.clear()
        while not naps:
            await turn(0)
        return naps[0]

    many = [feed.viewer().events() for _ in range(100)]
    await next_of(many[0], "state")
    assert await next_nap() == pytest.approx(0.1)
    for events in many[1:]:
        await next_of(events, "state")
    assert await next_nap() == pytest.approx(1.0)
    await closed(*many)
