"""The catalog: which versions there are, in which state and where, told to every worker.

The provisioner publishes the complete catalog at each change. A worker may miss a revision when
two follow closely, never the last one. What a worker still holds of retired endpoints is tracked
here, so that a runner is ended only after every worker has let go of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Literal

from blink_server.control_server import Peer, first_done
from blink_server.message_codec import ProtocolError
from blink_server.messages import (
    FROM_WORKER,
    CatalogEntry,
    CatalogUpdate,
    Connected,
    EndpointKey,
    RegisterWorker,
    Released,
)

ServerState = Literal["STARTING", "READY", "DRAINING"]


class Catalog:
    """The published catalog and its followers; all calls on one event loop."""

    def __init__(self) -> None:
        self._update: CatalogUpdate | None = None
        self._changed = asyncio.Condition()
        self._held: dict[Peer, set[EndpointKey]] = {}  # may hold: offered, and not given back
        self._connected: dict[Peer, set[EndpointKey]] = {}
        self._listeners: list[Callable[[], None]] = []

    @property
    def current(self) -> CatalogUpdate | None:
        """What was last published."""
        return self._update

    @property
    def workers(self) -> int:
        """How many workers follow."""
        return len(self._held)

    async def publish(
        self, server: ServerState, models: Sequence[CatalogEntry], *, ending: bool = False
    ) -> None:
        """Make this the catalog; returns without waiting for the workers.

        `ending`: every request in flight shall end now.
        """
        revision = 1 if self._update is None else self._update.revision + 1
        self._update = CatalogUpdate(revision, server, tuple(models), ending)
        await self._notify()

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback()` whenever something was published or a worker has said something."""
        self._listeners.append(callback)

    def reachable(self, key: EndpointKey) -> bool:
        """Whether every worker that follows is connected to the endpoint."""
        return all(key in connected for connected in self._connected.values())

    async def released(self, key: EndpointKey) -> None:
        """Wait until no worker holds the endpoint, which must be out of the catalog already."""
        async with self._changed:
            await self._changed.wait_for(
                lambda: not any(key in held for held in self._held.values())
            )

    async def reached(self, workers: int) -> None:
        """Wait until so many workers follow, each connected to every endpoint that there is."""
        async with self._changed:
            await self._changed.wait_for(
                lambda: (
                    len(self._connected) >= workers
                    and all(self._endpoints() <= have for have in self._connected.values())
                )
            )

    def _endpoints(self) -> set[EndpointKey]:
        models = self._update.models if self._update is not None else ()
        return {entry.key for entry in models if entry.endpoint is not None}

    async def serve_worker(self, peer: Peer, registration: RegisterWorker) -> None:
        """Keep one worker up to date until it goes. Before the first publish it waits."""
        self._held[peer] = set(registration.holds)
        self._connected[peer] = set(registration.holds)
        await self._notify()
        try:
            await first_done(self._send_updates(peer), self._receive(peer))
        finally:
            del self._held[peer], self._connected[peer]
            await self._notify()

    async def _send_updates(self, peer: Peer) -> None:
        sent = 0
        while True:
            async with self._changed:
                await self._changed.wait_for(
                    lambda: self._update is not None and self._update.revision > sent  # noqa: B023
                )
            update = self._update
            assert update is not None
            self._held[peer] |= self._endpoints()
            await peer.send(update)
            sent = update.revision

    async def _receive(self, peer: Peer) -> None:
        async for message in peer.messages(FROM_WORKER):
            if not isinstance(message, Connected | Released):
                raise ProtocolError("registered twice")
            key = EndpointKey(message.model, message.version, message.epoch)
            if isinstance(message, Connected):
                self._connected[peer].add(key)
            else:
                self._held[peer].discard(key)
                self._connected[peer].discard(key)
            await self._notify()

    async def _notify(self) -> None:
        for callback in self._listeners:
            callback()
        async with self._changed:
            self._changed.notify_all()
