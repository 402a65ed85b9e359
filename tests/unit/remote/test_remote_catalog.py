"""A frontend's catalog between a door and the workers here, with endpoints that are not real."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blink_server.backend import Endpoint
from blink_server.catalog import Catalog
from blink_server.messages import CatalogEntry, CatalogUpdate, EndpointKey
from blink_server.remote.remote_catalog import RemoteCatalog

KEY = EndpointKey("tiny", 1, 1)
SECONDS = 20
HERE = Endpoint("shm", {"socket": "/here"})


class FakeReach:
    """Reaches its endpoint when told to."""

    def __init__(self, entry: CatalogEntry, directory: Path, changed: Callable[[], None]) -> None:
        self.entry = entry
        self.directory = directory
        self.files: Path | None = None
        self.endpoint: Endpoint | None = None
        self.failure = ""
        self.tried = asyncio.Event()
        self.ended = False
        self._changed = changed

    async def run(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.ended = True

    def succeed(self) -> None:
        self.files, self.endpoint, self.failure = Path("/text"), HERE, ""
        self._told()

    def fail(self, reason: str) -> None:
        self.failure = reason
        self._told()

    def _told(self) -> None:
        self.tried.set()
        self._changed()


class Frontend:
    def __init__(self, site: Any, directory: Path) -> None:
        self.site = site
        self.catalog = Catalog()
        self.reaches: list[FakeReach] = []
        make: Any = self.make
        self.remote = RemoteCatalog(site.link, self.catalog, make, directory)
        self.task = asyncio.create_task(self.remote.run())

    def make(self, entry: CatalogEntry, directory: Path, changed: Callable[[], None]) -> FakeReach:
        self.reaches.append(FakeReach(entry, directory, changed))
        return self.reaches[-1]

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait for a change of the catalog here."""
        async with asyncio.timeout(SECONDS):
            while not true():
                await self.catalog.next_change()

    async def update(self, true: Callable[[CatalogUpdate], bool]) -> CatalogUpdate:
        """The first publication here of which that is so."""
        await self.until(lambda: self.catalog.current is not None and true(self.catalog.current))
        assert self.catalog.current is not None
        return self.catalog.current

    async def first_reach(self) -> FakeReach:
        await self.update(lambda update: bool(update.models))
        return self.reaches[0]


@pytest.fixture
async def frontend(site: Any, tmp_path: Path) -> AsyncIterator[Frontend]:
    frontend = Frontend(site, tmp_path)
    yield frontend
    frontend.task.cancel()
    await frontend.remote.close()


def has_endpoint(update: CatalogUpdate) -> bool:
    return any(entry.endpoint is not None for entry in update.models)


async def test_an_endpoint_is_told_once_it_is_reached(site: Any, frontend: Frontend) -> None:
    reach = await frontend.first_reach()
    (entry,) = (await frontend.update(lambda _: True)).models
    assert (entry.state, entry.endpoint) == ("LOADING", None)
    assert not site.catalog.reachable(KEY)
    reach.succeed()
    (entry,) = (await frontend.update(has_endpoint)).models
    assert (entry.state, entry.endpoint, entry.directory) == ("READY", HERE, "/text")
    await site.catalog.until_reachable(KEY, SECONDS)
    assert site.catalog.reachable(KEY)
    await frontend.remote.caught_up()


async def test_one_that_cannot_be_reached_says_why(site: Any, frontend: Frontend) -> None:
    reach = await frontend.first_reach()
    reach.fail("no plugin here brings the tokenizer 'x'")
    (entry,) = (await frontend.update(lambda u: u.models[0].state == "UNAVAILABLE")).models
    assert entry.reason == "no plugin here brings the tokenizer 'x'"
    await frontend.remote.caught_up()
    assert not site.catalog.reachable(KEY)
    reach.succeed()
    await frontend.update(has_endpoint)


async def test_what_leaves_is_released_when_nobody_here_holds_it(
    site: Any, frontend: Frontend
) -> None:
    reach = await frontend.first_reach()
    reach.succeed()
    await frontend.update(has_endpoint)
    frontend.catalog._held[object()] = {KEY}  # type: ignore[index]
    await site.catalog.publish("READY", [])
    await frontend.update(lambda update: update.models == ())
    assert site.catalog.is_held(KEY)
    assert not reach.ended
    frontend.catalog._held.clear()
    await frontend.catalog._notify()
    await asyncio.wait_for(site.catalog.released(KEY), SECONDS)
    assert reach.ended
    assert not reach.directory.exists()


async def test_a_new_start_of_a_version_is_another_endpoint(site: Any, frontend: Frontend) -> None:
    first = await frontend.first_reach()
    first.succeed()
    await frontend.update(has_endpoint)
    await site.catalog.publish("READY", [replace(site.entry, epoch=2)])
    await frontend.until(lambda: len(frontend.reaches) == 2)
    frontend.reaches[1].succeed()
    update = await frontend.update(has_endpoint)
    assert [entry.epoch for entry in update.models] == [2]
    await asyncio.wait_for(site.catalog.released(KEY), SECONDS)


async def test_what_a_killed_frontend_has_left_is_no_hindrance(site: Any, tmp_path: Path) -> None:
    (tmp_path / "agent-1").mkdir()
    (tmp_path / "agent-1" / "ring.sock").touch()
    frontend = Frontend(site, tmp_path)
    reach = await frontend.first_reach()
    assert list(reach.directory.iterdir()) == []
    frontend.task.cancel()
    await frontend.remote.close()


async def test_settings_that_change_are_passed_on(site: Any, frontend: Frontend) -> None:
    (await frontend.first_reach()).succeed()
    await site.catalog.publish("READY", [replace(site.entry, aliases=("other",))])
    await frontend.update(lambda update: update.models[0].aliases == ("other",))
    assert len(frontend.reaches) == 1


async def test_without_the_door_what_was_stays(site: Any, frontend: Frontend) -> None:
    (await frontend.first_reach()).succeed()
    await frontend.update(has_endpoint)
    for task in list(site.door._connections):
        task.cancel()
    await site.catalog.next_change()  # the door has seen the end
    assert frontend.catalog.current is not None
    assert has_endpoint(frontend.catalog.current)
    async with asyncio.timeout(SECONDS):
        while not site.catalog.workers:
            await site.catalog.next_change()
    assert site.catalog.is_held(KEY)  # it has said so itself, in its first line
    assert len(frontend.reaches) == 1


async def test_an_end_refuses_what_is_new_and_then_ends_what_is_old(frontend: Frontend) -> None:
    (await frontend.first_reach()).succeed()
    await frontend.remote.end(requests=False)
    update = await frontend.update(lambda update: update.server == "DRAINING")
    assert not update.ending
    await frontend.remote.end(requests=True)
    assert (await frontend.update(lambda update: update.ending)).server == "DRAINING"
