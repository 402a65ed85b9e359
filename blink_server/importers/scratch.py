"""Private working directories that vanish with their owner, however it ends."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_LOCK = "lock"


@contextmanager
def scratch_directory(parent: Path, prefix: str) -> Iterator[Path]:
    """A new empty directory `<parent>/<prefix><random>/work`, removed at the end.

    A killed owner cannot remove its own, so each call first removes those of the dead: a living
    owner holds a lock (flock) beside `work`, which the system releases with the process. What
    is to stay is renamed out of `work`, or is `work` itself, renamed. Raises OSError.
    """
    for leftover in parent.glob(f"{prefix}*"):
        _remove_if_dead(leftover)
    directory, lock = _create(parent, prefix)
    try:
        work = directory / "work"
        work.mkdir()
        yield work
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        os.close(lock)


def _create(parent: Path, prefix: str) -> tuple[Path, int]:
    """A directory whose lock is held; another call may sweep one away before it is locked."""
    while True:
        directory = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        with suppress(FileNotFoundError):
            lock = _try_lock(directory)
            if lock is not None:
                return directory, lock


def _remove_if_dead(directory: Path) -> None:
    with suppress(FileNotFoundError, NotADirectoryError):
        lock = _try_lock(directory)
        if lock is not None:
            shutil.rmtree(directory, ignore_errors=True)
            os.close(lock)


def _try_lock(directory: Path) -> int | None:
    """The descriptor of the directory's lock, or None while somebody else holds or removed it."""
    lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    if os.fstat(lock).st_nlink == 0:
        os.close(lock)
        return None
    return lock
