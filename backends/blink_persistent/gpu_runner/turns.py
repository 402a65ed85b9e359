"""Who may load or unload on a GPU: one version at a time, first those that leave."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """Any thread may ask; a turn is not taken twice by the same one."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._busy = False
        self._leaving = 0

    @contextmanager
    def to_load(self) -> Iterator[None]:
        """Wait until nobody loads or unloads, nor waits to unload."""
        with self._changed:
            self._changed.wait_for(lambda: not self._busy and not self._leaving)
            self._busy = True
        try:
            yield
        finally:
            self._end()

    @contextmanager
    def to_unload(self) -> Iterator[None]:
        """Wait until nobody loads or unloads."""
        with self._changed:
            self._leaving += 1
            self._changed.wait_for(lambda: not self._busy)
            self._leaving -= 1
            self._busy = True
        try:
            yield
        finally:
            self._end()

    def _end(self) -> None:
        with self._changed:
            self._busy = False
            self._changed.notify_all()
