"""Says when to look at the repositories again, never what has changed there.

What is read then is complete, so an event that is lost or comes twice does no harm. Besides, a
look is due from time to time whatever happens: the kernel drops events when too many come, and
sees nothing behind links or on file systems of other machines.
"""

from __future__ import annotations

import asyncio
import logging
import os
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

from watchdog import events
from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer

from blink_server.repository.names import is_noise

log = logging.getLogger(__name__)

LONGEST_WAIT = 10.0  # seconds between two looks
_CALM = 0.1  # seconds that events are collected before the next look

# Reading is no change: without this list the looks themselves would ask for looks. Nor is a
# directory's own modification, which comes with every hidden file in it.
_CHANGES: list[type[FileSystemEvent]] = [
    getattr(events, name)
    for name in (
        "DirAttribEvent",  # of watchdog 7; before, FileModifiedEvent says it of files
        "DirCreatedEvent",
        "DirDeletedEvent",
        "DirMovedEvent",
        "FileAttribEvent",
        "FileClosedEvent",
        "FileCreatedEvent",
        "FileDeletedEvent",
        "FileModifiedEvent",
        "FileMovedEvent",
    )
    if hasattr(events, name)
]


class Watcher:
    """Watches repositories; made, waited for and closed on one event loop."""

    def __init__(
        self,
        repositories: Iterable[Path],
        *,
        polling_seconds: float | None = None,
        longest_wait: float = LONGEST_WAIT,
    ) -> None:
        """With `polling_seconds` no events are asked for: a look is due so often."""
        self._repositories = [path.absolute() for path in repositories]
        self._longest_wait = polling_seconds or longest_wait
        self._events = polling_seconds is None
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._observer = Observer()
        self._started = False

    def start(self) -> None:
        """Watch from now on; blocks while the folders are walked, so call it in a thread.

        Where the kernel refuses (its limits on watches), looks are due by time alone.
        """
        if not self._events:
            return
        # watchdog 7 walks a new folder, then also hears of the folders in it, and warns that it has
        # put a watch where its own, the same, was.
        warnings.filterwarnings("ignore", "Callback with id", RuntimeWarning, "watchdog")
        handler = _Handler(self._repositories, self._notice)
        try:
            for repository in self._repositories:
                self._observer.schedule(
                    handler, str(repository), recursive=True, event_filter=_CHANGES
                )
            self._observer.start()
            self._started = True
        except OSError as error:
            log.warning(
                "the repository cannot be watched (%s): looking every %g s",
                error,
                self._longest_wait,
            )

    async def wait(self, seconds: float | None = None) -> None:
        """Wait until a look is due: after a change, and in `seconds` at the latest."""
        longest = self._longest_wait if seconds is None else min(seconds, self._longest_wait)
        try:
            async with asyncio.timeout(longest):
                await self._changed.wait()
        except TimeoutError:
            return
        await asyncio.sleep(_CALM)  # a copied folder is hundreds of events
        self._changed.clear()

    def close(self) -> None:
        """Stop watching; blocks until the watching thread has ended."""
        if self._started:
            self._started = False
            self._observer.stop()
            self._observer.join()

    def _notice(self) -> None:
        self._loop.call_soon_threadsafe(self._changed.set)


class _Handler(FileSystemEventHandler):
    """Drops what concerns only hidden files and editors' files; called by watchdog's thread."""

    def __init__(self, repositories: Iterable[Path], notice: Callable[[], None]) -> None:
        self._roots = [os.fspath(path) for path in repositories]
        self._notice = notice

    def on_any_event(self, event: FileSystemEvent) -> None:
        """See watchdog."""
        paths = [os.fsdecode(path) for path in (event.src_path, event.dest_path) if path]
        if any(not self._is_noise(path) for path in paths):
            self._notice()

    def _is_noise(self, path: str) -> bool:
        for root in self._roots:
            if path.startswith(root):
                path = path[len(root) :]
                break
        return any(is_noise(part) for part in Path(path).parts)
