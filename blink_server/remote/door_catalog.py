"""The door's copy of the catalog: from the provisioner, with the files that text needs, onwards."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from dataclasses import replace
from pathlib import Path

from blink_server.catalog import Catalog
from blink_server.errors import BlinkError
from blink_server.message_codec import MAX_LINE, Message, decode, encode
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
from blink_server.remote.sessions import Sessions
from blink_server.remote.text_files import TextFiles

log = logging.getLogger(__name__)

_FIRST_RETRY = 0.05  # seconds
_LONGEST_RETRY = 1.0


class DoorCatalog:
    """Follows the provisioner as a worker does, and says for all frontends what a worker says.

    Connected to an endpoint is the door when every frontend is; it has released it when no frontend
    holds it and no agent is left at it. All calls on one event loop.
    """

    def __init__(
        self, control_socket: Path, catalog: Catalog, files: TextFiles, sessions: Sessions
    ) -> None:
        self._control_socket = control_socket
        self._catalog = catalog
        self._files = files
        self._sessions = sessions
        self._held: set[EndpointKey] = set()
        self._told: set[EndpointKey] = set()  # that it is connected
        self._writer: asyncio.StreamWriter | None = None
        catalog.on_change(self.look)

    async def run(self) -> None:
        """Follow until cancelled; connect again whenever the provisioner has gone."""
        retry = _FIRST_RETRY
        while True:
            try:
                reader, self._writer = await asyncio.open_unix_connection(
                    str(self._control_socket), limit=MAX_LINE
                )
                self._send(RegisterWorker(os.getpid(), tuple(self._held)))
                self._told.clear()
                while line := await reader.readline():
                    retry = _FIRST_RETRY
                    await self._hear(decode(line, TO_WORKER))
            except (OSError, ValueError, BlinkError) as error:
                log.debug("catalog: %s", error)
            finally:
                if self._writer is not None:
                    self._writer.close()
                    self._writer = None
            await asyncio.sleep(retry)
            retry = min(2 * retry, _LONGEST_RETRY)

    def look(self) -> None:
        """Tell the provisioner what has become true of endpoints."""
        update = self._catalog.current
        offered = {e.key for e in update.models if e.endpoint is not None} if update else set()
        for key in offered:
            if key not in self._told and self._catalog.reachable(key):
                self._told.add(key)
                self._send(Connected(key.model, key.version, key.epoch))
        for key in self._held - offered:
            if not self._catalog.is_held(key) and not self._sessions.at(key):
                self._held.discard(key)
                self._told.discard(key)
                self._send(Released(key.model, key.version, key.epoch))

    async def _hear(self, message: Message) -> None:
        if isinstance(message, CountUsage):
            counts = self._sessions.in_use()
            used = tuple(EndpointUsage(key, count) for key, count in counts.items() if count)
            self._send(Usage(message.id, used))
            return
        assert isinstance(message, CatalogUpdate)
        models = await asyncio.to_thread(lambda: [self._with_files(e) for e in message.models])
        self._held |= {entry.key for entry in models if entry.endpoint is not None}
        await self._catalog.publish(message.server, models, ending=message.ending)

    def _with_files(self, entry: CatalogEntry) -> CatalogEntry:
        with contextlib.suppress(OSError):  # being changed: there will be another update
            return replace(entry, files=self._files.of(entry))
        return entry

    def _send(self, message: Message) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(encode(message))
