"""Follows the repositories: looks whenever a look is due, and hands on what is wanted."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection

from blink_server.errors import BlinkError
from blink_server.repository.policy import Generation
from blink_server.repository.reader import RepositoryReader
from blink_server.repository.requests import LoadRequests
from blink_server.repository.wanted import WantedSet
from blink_server.repository.watcher import Watcher

log = logging.getLogger(__name__)

_SHARE = 0.1  # of the time, at most, goes into looking


class RepositoryFollower:
    """All calls on the provisioner's event loop; the reading is done in a thread."""

    def __init__(
        self,
        reader: RepositoryReader,
        apply: Callable[[WantedSet], Awaitable[None]],
        requests: LoadRequests | None = None,
    ) -> None:
        """`apply` takes what is wanted. `requests`: only these models are."""
        self._reader = reader
        self._apply = apply
        self._requests = requests
        self._broken: Collection[Generation] = ()
        self._looking = asyncio.Lock()  # held from a look until what it has found is applied
        self._told: set[str] = set()
        self._seconds = 0.0  # of the last look
        self.wanted = WantedSet()  # as of the last look

    async def first(self) -> WantedSet:
        """The wanted set at the start, waiting for what is still being written, but not for long.

        Raises BlinkError for a repository that cannot be read.
        """
        wanted = await self._read_settled()
        self._told = _complaints(wanted)  # the server's summary shows them
        return wanted

    async def look(self) -> WantedSet:
        """Look and apply now. Raises BlinkError for a repository that cannot be read."""
        async with self._looking:
            return await self._take(await self._read_settled())

    async def reselect(self, broken: Collection[Generation]) -> None:
        """Apply what the last look has found, now that exactly these could not be loaded."""
        async with self._looking:
            self._broken = broken
            await self._take(await self._ask(self._reader.select))

    async def run(self, watcher: Watcher) -> None:
        """Look and apply until cancelled. A repository that cannot be read changes nothing."""
        unreadable = ""
        while True:
            try:
                async with self._looking:
                    await self._take(await self._read())
                unreadable = ""
            except BlinkError as error:
                if str(error) != unreadable:
                    log.error("%s; what serves goes on", error)
                unreadable = str(error)
            await asyncio.sleep(self._seconds / _SHARE)
            await watcher.wait(self._reader.due)

    async def _read_settled(self) -> WantedSet:
        wanted = await self._read()
        if (due := self._reader.due) is not None:
            await asyncio.sleep(due)
            wanted = await self._read()
        return wanted

    async def _read(self) -> WantedSet:
        began = time.monotonic()
        try:
            return await self._ask(self._reader.read)
        finally:
            self._seconds = time.monotonic() - began

    async def _ask(self, reading: Callable[..., WantedSet]) -> WantedSet:
        requests = self._requests.copy() if self._requests is not None else None
        self.wanted = await asyncio.to_thread(reading, requests, self._broken)
        return self.wanted

    async def _take(self, wanted: WantedSet) -> WantedSet:
        self._tell(wanted)
        await self._apply(wanted)
        return wanted

    def _tell(self, wanted: WantedSet) -> None:
        """Log each thing that is wrong when it comes up."""
        complaints = _complaints(wanted)
        for complaint in sorted(complaints - self._told):
            log.warning("%s", complaint)
        self._told = complaints


def _complaints(wanted: WantedSet) -> set[str]:
    invalid = {f"{each.key} cannot be loaded: {each.reason}" for each in wanted.invalid}
    return invalid | {str(problem) for problem in wanted.problems}
