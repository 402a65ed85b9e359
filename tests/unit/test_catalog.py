from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from blink_server.backend import Endpoint
from blink_server.catalog import Catalog
from blink_server.control_server import ControlServer
from blink_server.message_codec import MAX_LINE, decode, encode
from blink_server.messages import (
    TO_WORKER,
    CatalogEntry,
    CatalogUpdate,
    Connected,
    EndpointKey,
    Message,
    RegisterWorker,
    Released,
)

ENTRY = CatalogEntry(
    model="m",
    version=1,
    epoch=1,
    state="READY",
    reason="",
    directory="/m/1",
    config={},
    aliases=(),
    backend="fake",
    endpoint=Endpoint("fake", {}),
)
KEY = ENTRY.key
GONE = replace(ENTRY, state="UNAVAILABLE", reason="runner exited", endpoint=None)


class Worker:
    """A worker's end of the wire."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, path: Path, *holds: EndpointKey) -> Worker:
        worker = cls(*await asyncio.open_unix_connection(str(path), limit=MAX_LINE))
        worker.say(RegisterWorker(os.getpid(), holds))
        return worker

    def say(self, message: Message) -> None:
        self.writer.write(encode(message))

    async def update(self) -> CatalogUpdate:
        line = await asyncio.wait_for(self.reader.readline(), 10)
        update = decode(line, TO_WORKER)
        assert isinstance(update, CatalogUpdate)
        return update


@pytest.fixture
def catalog() -> Catalog:
    return Catalog()


@pytest.fixture
async def path(short_path: Path, catalog: Catalog) -> AsyncIterator[Path]:
    async def no_runner(*_: object) -> None:
        raise AssertionError("no runner connects here")

    path = short_path / "control.sock"
    server = ControlServer(path, on_runner=no_runner, on_worker=catalog.serve_worker)
    await server.start()
    yield path
    await server.close()


async def test_every_worker_gets_the_complete_catalog_at_once_and_at_each_change(
    catalog: Catalog, path: Path
) -> None:
    await catalog.publish("STARTING", [ENTRY])
    workers = [await Worker.connect(path) for _ in range(2)]
    for worker in workers:
        assert await worker.update() == CatalogUpdate(1, "STARTING", (ENTRY,))
    await catalog.publish("READY", [GONE])
    for worker in workers:
        assert await worker.update() == CatalogUpdate(2, "READY", (GONE,))


async def test_nothing_is_said_before_the_first_publish(catalog: Catalog, path: Path) -> None:
    worker = await Worker.connect(path)
    await catalog.reached(1)
    await catalog.publish("READY", [])
    assert await worker.update() == CatalogUpdate(1, "READY", ())


async def test_an_endpoint_is_released_when_every_worker_has_said_so(
    catalog: Catalog, path: Path
) -> None:
    await catalog.publish("READY", [ENTRY])
    workers = [await Worker.connect(path) for _ in range(2)]
    for worker in workers:
        await worker.update()
    await catalog.publish("READY", [GONE])
    released = asyncio.ensure_future(catalog.released(KEY))
    workers[0].say(Released("m", 1, 1))
    await workers[0].update()
    assert (await workers[1].update()).models == (GONE,)
    assert not released.done()
    workers[1].say(Released("m", 1, 1))
    await asyncio.wait_for(released, 10)


async def test_a_worker_that_dies_holds_nothing(catalog: Catalog, path: Path) -> None:
    await catalog.publish("READY", [ENTRY])
    worker = await Worker.connect(path)
    await worker.update()
    await catalog.publish("READY", [GONE])
    released = asyncio.ensure_future(catalog.released(KEY))
    await worker.update()
    assert not released.done()
    worker.writer.close()
    await asyncio.wait_for(released, 10)
    assert catalog.workers == 0


async def test_a_worker_from_before_tells_what_it_holds(catalog: Catalog, path: Path) -> None:
    await catalog.publish("READY", [GONE])
    worker = await Worker.connect(path, KEY)
    await worker.update()
    released = asyncio.ensure_future(catalog.released(KEY))
    other = await Worker.connect(path)
    await other.update()
    assert not released.done()
    worker.say(Released("m", 1, 1))
    await asyncio.wait_for(released, 10)


async def test_reached_is_when_every_worker_can_use_every_endpoint(
    catalog: Catalog, path: Path
) -> None:
    await catalog.publish("READY", [ENTRY])
    reached = asyncio.ensure_future(catalog.reached(2))
    workers = [await Worker.connect(path) for _ in range(2)]
    for worker in workers:
        await worker.update()
    workers[0].say(Connected("m", 1, 1))
    await catalog.publish("READY", [ENTRY])
    assert (await workers[0].update()).revision == 2
    assert not reached.done()
    workers[1].say(Connected("m", 1, 1))
    await asyncio.wait_for(reached, 10)


async def test_a_slow_worker_gets_the_last_revision_not_each(catalog: Catalog, path: Path) -> None:
    worker = await Worker.connect(path)
    await catalog.reached(1)
    large = replace(ENTRY, config={"text": "x" * 1_000_000})
    for _ in range(20):
        await catalog.publish("READY", [large])
        await asyncio.sleep(0)
    revisions = []
    while not revisions or revisions[-1] < 20:
        revisions.append((await worker.update()).revision)
    assert len(revisions) < 20
    assert revisions == sorted(set(revisions))
