"""The door's copy of the catalog: from the provisioner, with the files that text needs, onwards."""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import replace
from pathlib import Path

from blink_server.catalog import Catalog
from blink_server.catalog_link import CatalogLink
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
from blink_server.remote.sessions import Sessions
from blink_server.remote.text_files import TextFiles


class DoorCatalog:
    """Follows the provisioner as a worker does, and says for all frontends what a worker says.

    Connected to an endpoint is the door when every frontend is; it has released it when no frontend
    holds it and no agent is left at it. All calls on one event loop.
    """

    def __init__(
        self, control_socket: Path, catalog: Catalog, files: TextFiles, sessions: Sessions
    ) -> None:
        self._provisioner = CatalogLink(control_socket, self._register, self._hear)
        self._catalog = catalog
        self._files = files
        self._sessions = sessions
        self._held: set[EndpointKey] = set()
        self._told: set[EndpointKey] = set()  # that it is connected
        catalog.on_change(self.look)

    async def run(self) -> None:
        """Follow until cancelled."""
        await self._provisioner.run()

    def _register(self) -> RegisterWorker:
        self._told.clear()
        return RegisterWorker(os.getpid(), tuple(self._held))

    def look(self) -> None:
        """Tell the provisioner what has become true of endpoints."""
        update = self._catalog.current
        offered = {e.key for e in update.models if e.endpoint is not None} if update else set()
        for key in offered:
            if key not in self._told and self._catalog.reachable(key):
                self._told.add(key)
                self._provisioner.send(Connected(key.model, key.version, key.epoch))
        for key in self._held - offered:
            if not self._catalog.is_held(key) and not self._sessions.at(key):
                self._held.discard(key)
                self._told.discard(key)
                self._provisioner.send(Released(key.model, key.version, key.epoch))

    async def _hear(self, message: Message) -> None:
        if isinstance(message, CountUsage):
            counts = self._sessions.in_use()
            used = tuple(EndpointUsage(key, count) for key, count in counts.items() if count)
            self._provisioner.send(Usage(message.id, used))
            return
        assert isinstance(message, CatalogUpdate)
        models = await asyncio.to_thread(lambda: [self._with_files(e) for e in message.models])
        self._held |= {entry.key for entry in models if entry.endpoint is not None}
        await self._catalog.publish(message.server, models, ending=message.ending)

    def _with_files(self, entry: CatalogEntry) -> CatalogEntry:
        with contextlib.suppress(OSError):  # being changed: there will be another update
            return replace(entry, files=self._files.of(entry))
        return entry
