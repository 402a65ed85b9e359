"""The catalog: which versions there are, in which state and where, told to every worker.

The provisioner publishes the complete catalog at each change. A worker may miss a revision when
two follow closely, never the last one. What a worker still holds of retired endpoints is tracked
here, so that a runner is ended only after every worker has let go of it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from blink_server.control_server import Peer, first_done
from blink_server.message_codec import ProtocolError
from blink_server.messages import (
    FROM_WORKER,
    CatalogEntry,
    CatalogUpdate,
    Connected,
    CountUsage,
    EndpointKey,
    RegisterWorker,
    Released,
    Usage,
)

_COUNT_SECONDS = 1.0

ServerState = Literal["STARTING", "READY", "DRAINING"]


class Catalog:
    """The published catalog and its followers; all calls on one event loop."""

    def __init__(self) -> None:
        self._update: CatalogUpdate | None = None
        self._log_level = ""
        self._changed = asyncio.Condition()
        self._held: dict[Peer, set[EndpointKey]] = {}  # may hold: offered, and not given back
        self._connected: dict[Peer, set[EndpointKey]] = {}
        self._changes = 0
        self._questions = 0
        self._counted: dict[Peer, Usage] = {}  # each worker's last count
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
        level = self._log_level
        self._update = CatalogUpdate(revision, server, tuple(models), ending, level)
        await self._notify()

    async def set_log_level(self, level: str) -> None:
        """Have all workers log from `level` up."""
        self._log_level = level
        if self._update is not None:
            revision = self._update.revision + 1
            self._update = replace(self._update, revision=revision, log_level=level)
            await self._notify()

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback()` whenever something was published or a worker has said something."""
        self._listeners.append(callback)

    async def next_change(self) -> None:
        """Wait for the next publication, or word of a worker."""
        seen = self._changes
        async with self._changed:
            await self._changed.wait_for(lambda: self._changes != seen)

    def reachable(self, key: EndpointKey) -> bool:
        """Whether every worker that follows is connected to the endpoint."""
        return all(key in connected for connected in self._connected.values())

    async def until_reachable(self, key: EndpointKey, seconds: float) -> None:
        """Wait until that is so, or so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(lambda: self.reachable(key))

    async def usage(self) -> dict[EndpointKey, int]:
        """Requests in flight at each endpoint, as far as the workers answer within a second."""
        self._questions += 1
        number = self._questions
        peers = list(self._held)
        for peer in peers:
            with contextlib.suppress(ConnectionError):
                await peer.send(CountUsage(number))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_COUNT_SECONDS), self._changed:
                await self._changed.wait_for(lambda: self._all_counted(peers, number))
        total: dict[EndpointKey, int] = {}
        for count in self._counted.values():
            for each in count.endpoints:
                total[each.endpoint] = total.get(each.endpoint, 0) + each.requests
        return total

    def _all_counted(self, peers: Sequence[Peer], number: int) -> bool:
        return all(
            peer not in self._held or (peer in self._counted and self._counted[peer].id >= number)
            for peer in peers
        )

    def is_held(self, key: EndpointKey) -> bool:
        """Whether a worker may still give requests to the endpoint, or wait for some."""
        return any(key in held for held in self._held.values())

    async def released(self, key: EndpointKey) -> None:
        """Wait until no worker holds the endpoint, which must be out of the catalog already."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self.is_held(key))

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
            self._counted.pop(peer, None)
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
            if isinstance(message, Usage):
                self._counted[peer] = message
                await self._notify()
                continue
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
        self._changes += 1
        for callback in self._listeners:
            callback()
        async with self._changed:
            self._changed.notify_all()
