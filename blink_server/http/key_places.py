"""How many requests a key has in progress, over all workers of a server.

Each request holds a place: a lock on one byte of the key's file, as many of which as the key may
have requests. The kernel gives a dead worker's locks back, and no worker ever waits for another.
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True)
class _Held:
    file: int | None
    places: set[int] = field(default_factory=set)


class KeyPlaces:
    """The places that this worker's requests hold; for one thread."""

    def __init__(self, directory: Path | None, most: int) -> None:
        """`directory`: where the workers of one run of the server meet; None: there is one worker.

        Raises OSError where it cannot be made.
        """
        self._directory = directory
        self.most = most
        self._held: dict[bytes, _Held] = {}
        if directory is not None:
            directory.mkdir(mode=0o700, exist_ok=True)

    def take(self, digest: bytes) -> int | None:
        """A place of the key, None where all are taken. Raises OSError."""
        held = self._held.get(digest)
        if held is None:
            held = self._held[digest] = _Held(self._open(digest))
        for place in range(self.most):
            # A process's own locks are no obstacle to it.
            if place not in held.places and _lock(held.file, place):
                held.places.add(place)
                return place
        self._let_go(digest)
        return None

    def give(self, digest: bytes, place: int) -> None:
        """The request that held the place has ended."""
        held = self._held[digest]
        held.places.remove(place)
        if held.file is not None:
            fcntl.lockf(held.file, fcntl.LOCK_UN, 1, place)
        self._let_go(digest)

    def _open(self, digest: bytes) -> int | None:
        if self._directory is None:
            return None
        return os.open(self._directory / digest.hex(), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _let_go(self, digest: bytes) -> None:
        """Close the file of a key without requests; closing earlier would give all locks back."""
        held = self._held[digest]
        if not held.places:
            del self._held[digest]
            if held.file is not None:
                os.close(held.file)


def _lock(file: int | None, place: int) -> bool:
    if file is None:
        return True
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
    except (BlockingIOError, PermissionError):  # POSIX lets a system choose
        return False
    return True
