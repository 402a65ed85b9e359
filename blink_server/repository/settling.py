"""Whether a version directory has been still for long enough to be taken for complete."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from blink_server.repository.stamps import Stamp


class Settling:
    """Remembers since when each directory has had its stamp; for one thread."""

    def __init__(
        self,
        seconds: float,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """`seconds`: how long sizes and times must stay as they are."""
        self._seconds = seconds
        self._monotonic = monotonic
        self._wall_ns = wall_ns
        self._since: dict[Path, tuple[Stamp, float]] = {}

    def settled(self, directory: Path, stamp: Stamp) -> bool:
        """Whether the directory, which is now as `stamp` says, is complete.

        A directory that is seen for the first time, or put whole in another's place, may have been
        still for long already: its files' change times tell. What is seen to change is timed by
        the monotonic clock, so that a wall clock that is set back delays a directory by the settle
        time at most.
        """
        now = self._monotonic()
        before = self._since.get(directory)
        if before is None or before[0].directory != stamp.directory:
            age = self._wall_ns() - stamp.newest_ns
            old = bool(stamp.files) and age >= self._seconds * 1e9
            self._since[directory] = stamp, -math.inf if old else now
        elif before[0] != stamp:
            self._since[directory] = stamp, now
        return now - self._since[directory][1] >= self._seconds

    def due(self, directories: Iterable[Path]) -> float | None:
        """Seconds until the first of these may be settled; None where there is none."""
        now = self._monotonic()
        waits = [self._since[d][1] + self._seconds - now for d in directories if d in self._since]
        return max(min(waits), 0.0) if waits else None

    def keep_only(self, directories: Iterable[Path]) -> None:
        """Forget every other directory."""
        kept = set(directories)
        self._since = {path: seen for path, seen in self._since.items() if path in kept}
