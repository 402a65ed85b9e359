"""The frontend's catalog: the host's, with the endpoints that were reached."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from blink_server.backoff import Backoff
from blink_server.catalog import Catalog, ServerState
from blink_server.errors import BlinkError
from blink_server.message_codec import Message, decode
from blink_server.messages import (
    TO_WORKER,
    CatalogEntry,
    CatalogUpdate,
    Connected,
    CountUsage,
    EndpointKey,
    EndpointUsage,
    RegisterWorker,
    Released,
    Usage,
)
from blink_server.remote.door import Lines
from blink_server.remote.host_link import HostLink, send
from blink_server.remote.reach import Reach
from blink_server.repository.harness import State

log = logging.getLogger(__name__)

_FIRST_RETRY = 0.2  # seconds
_LONGEST_RETRY = 5.0

MakeReach = Callable[[CatalogEntry, Path, Callable[[], None]], Reach]


class RemoteCatalog:
    """Follows the host's door; without it the last catalog stays in force.

    An endpoint that has left the host's catalog is given up when no worker here holds it; the host
    is then told. All calls on one event loop.
    """

    def __init__(
        self, host: HostLink, catalog: Catalog, make_reach: MakeReach, directory: Path
    ) -> None:
        """`directory` is for the sockets of agents."""
        self._host = host
        self._catalog = catalog
        self._make_reach = make_reach
        self._directory = directory
        self._update: CatalogUpdate | None = None
        self._reaches: dict[EndpointKey, Reach] = {}
        self._running: dict[EndpointKey, asyncio.Task[None]] = {}
        self._retiring: dict[EndpointKey, asyncio.Task[None]] = {}
        self._told: set[EndpointKey] = set()  # that it is connected
        self._lines: Lines | None = None
        self._count = 0  # of directories made
        self._ending: tuple[ServerState, bool] | None = None
        self._publishing = asyncio.Lock()
        self._publications: set[asyncio.Task[None]] = set()
        self._first = asyncio.Event()
        catalog.on_change(self._tell_connected)

    async def run(self) -> None:
        """Follow until cancelled; connect again whenever the door has gone."""
        backoff = Backoff(_FIRST_RETRY, _LONGEST_RETRY)
        while True:
            try:
                self._lines = await self._host.open("follow")
                backoff.reset()
                await self._follow(self._lines)
            except (BlinkError, OSError) as error:
                log.warning("%s; trying again", error)
            finally:
                if self._lines is not None:
                    self._lines.writer.close()
                    self._lines = None
            await asyncio.sleep(backoff.next())

    async def caught_up(self) -> None:
        """Wait for the first catalog, and for one attempt to reach each endpoint in it."""
        await self._first.wait()
        for reach in list(self._reaches.values()):
            await reach.tried.wait()

    async def end(self, *, requests: bool) -> None:
        """Take nothing new, or with `requests` end those in flight as well."""
        self._ending = ("DRAINING", requests)
        await self._publish()

    async def close(self) -> None:
        """End every agent; the workers are gone."""
        tasks = [*self._running.values(), *self._retiring.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, lines: Lines) -> None:
        self._told.clear()
        send(lines, RegisterWorker(os.getpid(), tuple(self._reaches)))
        self._tell_connected()
        while line := await lines.read():
            message = decode(line, TO_WORKER)
            if isinstance(message, CatalogUpdate):
                await self._apply(message)
            elif isinstance(message, CountUsage):
                usage = await self._catalog.usage()
                counts = tuple(EndpointUsage(key, count) for key, count in usage.items() if count)
                send(lines, Usage(message.id, counts))

    async def _apply(self, update: CatalogUpdate) -> None:
        self._update = update
        offered = {entry.key: entry for entry in update.models if entry.endpoint is not None}
        for key, entry in offered.items():
            if key in self._reaches:
                self._reaches[key].entry = entry
            else:
                self._start(entry)
        await self._publish()
        for key in self._reaches.keys() - offered.keys() - self._retiring.keys():
            self._retiring[key] = asyncio.create_task(self._retire(key))
        self._first.set()

    def _start(self, entry: CatalogEntry) -> None:
        self._count += 1
        directory = self._directory / f"agent-{self._count}"
        shutil.rmtree(directory, ignore_errors=True)  # of a frontend that was killed
        directory.mkdir(mode=0o700)
        reach = self._make_reach(entry, directory, self._changed)
        self._reaches[entry.key] = reach
        task = asyncio.create_task(reach.run())
        task.add_done_callback(lambda _: shutil.rmtree(directory, ignore_errors=True))
        self._running[entry.key] = task

    def _changed(self) -> None:
        task = asyncio.create_task(self._publish())
        self._publications.add(task)
        task.add_done_callback(self._publications.discard)

    async def _retire(self, key: EndpointKey) -> None:
        await self._catalog.released(key)
        task = self._running.pop(key)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        del self._reaches[key], self._retiring[key]
        self._told.discard(key)
        self._say(Released(key.model, key.version, key.epoch))

    async def _publish(self) -> None:
        async with self._publishing:
            update = self._update
            if update is None:
                return
            server, ending = self._ending or (update.server, update.ending)
            models = [self._local(entry) for entry in update.models]
            await self._catalog.publish(server, models, ending=ending or update.ending)

    def _local(self, entry: CatalogEntry) -> CatalogEntry:
        """The entry as workers here may use it."""
        if entry.endpoint is None:
            return entry
        reach = self._reaches[entry.key]
        if reach.failure:
            return replace(entry, endpoint=None, state=State.UNAVAILABLE, reason=reach.failure)
        if reach.endpoint is None or reach.files is None:
            return replace(
                entry, endpoint=None, state=State.LOADING, reason="its ring is reached for"
            )
        return replace(entry, endpoint=reach.endpoint, directory=str(reach.files))

    def _tell_connected(self) -> None:
        for key, reach in self._reaches.items():
            ready = reach.endpoint is not None and self._catalog.reachable(key)
            if ready and key not in self._told and self._lines is not None:
                self._told.add(key)
                self._say(Connected(key.model, key.version, key.epoch))

    def _say(self, message: Message) -> None:
        if self._lines is not None and not self._lines.writer.is_closing():
            send(self._lines, message)
