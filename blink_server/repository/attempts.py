"""How the loads of one generation have gone, and when the next one is due."""

from __future__ import annotations

import time

from blink_server.backoff import Backoff
from blink_server.repository.runner_process import MemoryRefusedError
from blink_server.repository.surroundings import Limits


class Attempts:
    """`failure`: why the last load failed, kept while the next one runs; "" once one succeeds.

    `starved`: it failed for lack of memory that what serves of its model now has, and may have.
    `broken`: it failed otherwise, so that another version had better serve instead. `retry_at`:
    when the next load is due, seconds since 1970; 0 where none is.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._backoff = Backoff(limits.first_retry, limits.longest_retry)
        self._had_memory = False  # a load has failed although there was memory for it
        self.failure = ""
        self.starved = False
        self.broken = False
        self.retry_at = 0.0

    def begun(self) -> None:
        """A load begins."""
        self.starved = False
        self.retry_at = 0.0

    def succeeded(self) -> None:
        """It has got READY."""
        self.failure = ""
        self.broken = self._had_memory = False

    def failed(self, error: Exception, reason: str, *, unload_first: bool) -> None:
        """It has not. `unload_first`: what serves may go for it.

        What serves goes once: when the successor turns out not to load, it comes back and stays.
        """
        refused = isinstance(error, MemoryRefusedError)
        self.starved = refused and unload_first and not self._had_memory
        self.broken = not self.starved
        if not (refused and self._had_memory):
            self.failure = reason
        self._had_memory = self._had_memory or not refused

    def wait(self, served: float) -> float:
        """Seconds to wait until the next load, after one that was READY for `served` seconds."""
        if served >= self._limits.healthy:
            self._backoff.reset()
        seconds = self._backoff.next()
        self.retry_at = time.time() + seconds
        return seconds
