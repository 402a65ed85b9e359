"""How a server is told to end: once to serve what it has begun, twice to leave at once."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable

from blink_server.errors import BlinkError

log = logging.getLogger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Stopping:
    """Set by the first SIGTERM, SIGINT or SIGHUP; the second calls `kill`. On one event loop."""

    def __init__(self, kill: Callable[[], None]) -> None:
        self._kill = kill
        self._begun = asyncio.Event()
        self._cut_short = False

    def listen(self) -> None:
        """From now on those signals are for this."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._signalled, number)

    def begin(self) -> None:
        """End for another reason: the next signal is taken for the second."""
        self._begun.set()

    async def wait(self) -> None:
        """Until it is time to end."""
        await self._begun.wait()

    def confess(self) -> None:
        """Raises BlinkError where not everything begun was served."""
        if self._cut_short:
            raise BlinkError("ended by a second signal, before all requests were served")

    def _signalled(self, number: signal.Signals) -> None:
        if not self._begun.is_set():
            log.info("%s: draining", number.name)
            self._begun.set()
        else:
            self._cut_short = True
            self._kill()
