"""An event loop whose time passes only while everything waits, and then at once."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

TICK_SECONDS = 1e-6
"""What a turn of the loop takes that waits for nothing."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Sleeps take no real time, and are exact to `TICK_SECONDS` a turn; no sockets, no threads."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_VirtualSelector(self))

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self.now


class _VirtualSelector(selectors.SelectSelector):
    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("everything waits for something that no timer brings about")
        self._loop.now += max(timeout, TICK_SECONDS)
        return super().select(0)


def run_virtually(main: Callable[[VirtualTimeLoop], Awaitable[T]]) -> T:
    """Run `main(loop)` to its end; `loop.time` is the clock, which a test may also set forward."""
    loop = VirtualTimeLoop()
    try:
        return loop.run_until_complete(main(loop))
    finally:
        loop.close()
