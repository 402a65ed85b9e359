"""The console's feed: one reader of rings and metrics for all viewers of a worker.

While somebody watches, the state is read up to ten times a second and what has changed is sent to
all, the same bytes to each. The more there are, the less often: a crowd costs no more than ten do.
A viewer who reads too slowly to keep up loses changes; he is sent the whole state again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

from blink_server.console.latencies import RecentLatencies
from blink_server.console.snapshot import State, changes, snapshot
from blink_server.http.metrics import Metrics
from blink_server.http.models import ModelDirectory
from blink_server.http.sse import frame

logger = logging.getLogger(__name__)

_UPDATE_SECONDS = 0.1
_VIEWER_SECONDS = 0.01  # added to that by each viewer beyond the tenth
_LATENCY_SECONDS = 2.0
_ALIVE_SECONDS = 10.0  # without news a viewer hears that the feed lives
_BEHIND = 20  # updates that a viewer may be behind
_LEAVE_SECONDS = 1.0  # for viewers to take the last word


class Viewer:
    """One open page: an iterator of events, each one write."""

    def __init__(self, feed: ConsoleFeed) -> None:
        self._feed = feed
        self._waiting: asyncio.Queue[bytes] = asyncio.Queue(_BEHIND)
        self._missed = True  # the first thing he gets is everything
        self._task: asyncio.Task[Any] | None = None

    def offer(self, update: bytes) -> None:
        """Something changed."""
        if not self._missed:
            try:
                self._waiting.put_nowait(update)
            except asyncio.QueueFull:
                self._missed = True

    async def events(self) -> AsyncIterator[bytes]:
        """Until the viewer goes away or the feed is closed."""
        self._task = asyncio.current_task()
        with self._feed.watched_by(self):
            while not self._feed.closed:
                if self._missed and self._waiting.empty():
                    self._missed = False
                    yield self._feed.everything()
                yield await self._next()

    async def _next(self) -> bytes:
        try:
            async with asyncio.timeout(_ALIVE_SECONDS):
                return await self._waiting.get()
        except TimeoutError:
            return b": alive\n\n"

    def leave(self) -> None:
        """End his request, also where he has stopped reading."""
        if self._task is not None:
            self._task.cancel()


class ConsoleFeed:
    """All calls on the worker's event loop. Costs nothing while nobody watches."""

    def __init__(self, directory: ModelDirectory, metrics: Metrics) -> None:
        self._directory = directory
        self._metrics = metrics
        self._latencies = RecentLatencies()
        self._state: State = {}
        self._viewers: set[Viewer] = set()
        self._task: asyncio.Task[None] | None = None
        self.closed = False

    def viewer(self) -> Viewer:
        """Somebody who has begun to watch."""
        return Viewer(self)

    @contextlib.contextmanager
    def watched_by(self, viewer: Viewer) -> Any:
        """While inside, the viewer is offered what changes."""
        if self._task is None:
            self._state = self._read()
            self._task = asyncio.create_task(self._run())
            self._task.add_done_callback(self._ended)
        self._viewers.add(viewer)
        try:
            yield
        finally:
            self._viewers.discard(viewer)
            if not self._viewers and self._task is not None:
                self._task.cancel()
                self._task = None

    def everything(self) -> bytes:
        """The whole state, as one event."""
        return _event("state", self._state)

    def close(self) -> None:
        """Let all viewers go, those who do not read either."""
        self.closed = True
        self._say_bye()
        asyncio.get_running_loop().call_later(_LEAVE_SECONDS, self._send_off)

    def _say_bye(self) -> None:
        for viewer in self._viewers:
            viewer.offer(_event("bye", {}))

    def _send_off(self) -> None:
        for viewer in self._viewers:
            viewer.leave()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the console can no longer read the state", exc_info=error)
            self._task = None
            self._say_bye()  # pages come again, and the next one to come starts it anew

    async def _run(self) -> None:
        latencies_due = 0.0
        while True:
            state = self._read()
            if time.monotonic() >= latencies_due:
                latencies_due = time.monotonic() + _LATENCY_SECONDS
                families = list(await self._metrics.families())
                state["latencies"] = self._latencies.observe(families)
            else:
                state["latencies"] = self._state.get("latencies", {})
            changed = changes(self._state, state)
            self._state = state
            if changed:
                update = _event("change", changed)
                for viewer in self._viewers:
                    viewer.offer(update)
            await asyncio.sleep(max(_UPDATE_SECONDS, _VIEWER_SECONDS * len(self._viewers)))

    def _read(self) -> State:
        return snapshot(self._directory, self._state)


def _event(name: str, state: State) -> bytes:
    payload = {"time": round(time.time(), 3), **state}
    return frame(json.dumps(payload, separators=(",", ":")).encode(), name)
