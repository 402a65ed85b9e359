"""The worker's side of the catalog: links to what is READY, lets go of what is retired.

For every endpoint in the catalog there is one `EndpointLink`, made when the endpoint appears and
dropped when it has left the catalog and no request of this worker holds it; the provisioner is
then told. Without a provisioner the last catalog stays in force.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

from blink_server.catalog_link import CatalogLink
from blink_server.endpoint_link import EndpointLink, Offers, version_of
from blink_server.errors import Unavailable
from blink_server.http.model_entry import ModelEntry, ServerState
from blink_server.http.models import ModelDirectory
from blink_server.logs import set_level
from blink_server.messages import (
    CatalogEntry,
    CatalogUpdate,
    Connected,
    CountUsage,
    EndpointKey,
    EndpointUsage,
    Message,
    RegisterWorker,
    Released,
    Usage,
)
from blink_server.repository.harness import State

_CLOSE_SECONDS = 5.0


class CatalogFollower:
    """Keeps a `ModelDirectory` true to the catalog; all calls on the worker's event loop."""

    def __init__(self, control_socket: Path, directory: ModelDirectory, offers: Offers) -> None:
        self._provisioner = CatalogLink(control_socket, self._register, self._hear)
        self._directory = directory
        self._offers = offers
        self._update: CatalogUpdate | None = None
        self._updated = asyncio.Event()
        self._links: dict[EndpointKey, EndpointLink] = {}
        self._running: dict[EndpointLink, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        directory.on_released(self._last_lease_ended)

    async def run(self) -> None:
        """Follow until cancelled."""
        await self._provisioner.run()

    def _register(self) -> RegisterWorker:
        return RegisterWorker(os.getpid(), tuple(self._links))

    async def _hear(self, message: Message) -> None:
        if isinstance(message, CatalogUpdate):
            self._apply(message)
        else:
            assert isinstance(message, CountUsage)
            self._provisioner.send(self._usage(message.id))

    async def caught_up(self) -> None:
        """Wait for the first catalog, and for one attempt to reach each endpoint in it."""
        await self._updated.wait()
        for link in list(self._links.values()):
            await link.tried.wait()

    async def close(self) -> None:
        """Close every session, which gives its slots back; waits a few seconds at most."""
        links, self._links = list(self._links.values()), {}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await asyncio.gather(*map(self._end, links), *self._tasks, return_exceptions=True)

    def _usage(self, number: int) -> Usage:
        counts = [EndpointUsage(key, self._directory.leases(key)) for key in self._links]
        return Usage(number, tuple(each for each in counts if each.requests))

    def _apply(self, update: CatalogUpdate) -> None:
        self._update = update
        self._updated.set()
        if update.log_level:
            set_level(update.log_level)
        offered = {entry.key: entry for entry in update.models if entry.endpoint is not None}
        for key, entry in offered.items():
            if key in self._links:
                self._links[key].update(entry)
            else:
                self._link(entry)
        self._publish()
        self._interrupt(update)
        for key, link in list(self._links.items()):
            if key not in offered:
                self._retire(link)

    def _interrupt(self, update: CatalogUpdate) -> None:
        """End the requests whose time is over: their runner, or the server, is ending."""
        if update.ending:
            self._directory.interrupt(self._links, Unavailable("the server has shut down"))
        for entry in update.models:
            if entry.state == State.UNLOADING:
                gone = Unavailable(f"{entry.model}:{entry.version} was unloaded")
                self._directory.interrupt([entry.key], gone)

    def _link(self, entry: CatalogEntry) -> None:
        link = EndpointLink(
            entry,
            self._offers,
            changed=self._link_changed,
            in_use=lambda: bool(self._directory.leases(entry.key)),
        )
        self._links[entry.key] = link
        self._running[link] = asyncio.create_task(link.run())

    def _link_changed(self, link: EndpointLink) -> None:
        self._publish()
        if link.session is not None:
            self._provisioner.send(Connected(link.key.model, link.key.version, link.key.epoch))

    def _retire(self, link: EndpointLink) -> None:
        """Stop connecting; with requests in flight the rest waits for the last of them."""
        self._running[link].cancel()
        if not self._directory.leases(link.key):
            self._drop(link)

    def _last_lease_ended(self, key: EndpointKey) -> None:
        link = self._links.get(key)
        if link is not None:
            link.unused.set()
            if not self._offered(key):
                self._drop(link)

    def _drop(self, link: EndpointLink) -> None:
        if self._links.pop(link.key, None) is link:
            link.tried.set()
            task = asyncio.create_task(self._release(link))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _release(self, link: EndpointLink) -> None:
        await self._end(link)
        self._provisioner.send(Released(link.key.model, link.key.version, link.key.epoch))

    async def _end(self, link: EndpointLink) -> None:
        task = self._running.pop(link)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await link.close()

    def _publish(self) -> None:
        if self._update is not None:
            entries = [self._entry(entry) for entry in self._update.models]
            self._directory.publish(entries, server=ServerState(self._update.server))

    def _entry(self, entry: CatalogEntry) -> ModelEntry:
        state, reason = State(entry.state), entry.reason
        link = self._links.get(entry.key) if entry.endpoint is not None else None
        session = link.session if link is not None else None
        if link is not None and link.failure:
            state, reason = State.UNAVAILABLE, link.failure
        return ModelEntry(
            version=version_of(entry),
            epoch=entry.epoch,
            state=state,
            reason=reason,
            aliases=entry.aliases,
            session=session,
            text=link.text if link is not None and session is not None else None,
            created=_created(entry),
            awaited=entry.awaited,
            load_seconds=entry.load_seconds,
        )

    def _offered(self, key: EndpointKey) -> bool:
        models = self._update.models if self._update is not None else ()
        return any(entry.key == key and entry.endpoint is not None for entry in models)


def _created(entry: CatalogEntry) -> int:
    try:
        return int(Path(entry.directory).stat().st_mtime)
    except OSError:
        return 0
