"""For tests: what comes true soon, where nothing tells a client when."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

_SECONDS = 60.0  # longer than anything takes that it is used for
_PAUSE_SECONDS = 0.02


async def eventually(ask: Callable[[], Awaitable[T]], holds: Callable[[T], bool]) -> T:
    """The first answer of `ask` that `holds`; asked again and again.

    For what follows from an event a moment later in another process: a worker learns of a state
    after the provisioner's log has told it. Raises AssertionError with the last answer where none
    holds within a minute.
    """
    answers: list[T] = []
    try:
        async with asyncio.timeout(_SECONDS):
            while True:
                answers[:] = [await ask()]
                if holds(answers[0]):
                    return answers[0]
                await asyncio.sleep(_PAUSE_SECONDS)
    except TimeoutError:
        raise AssertionError(f"still {answers[0] if answers else 'unanswered'!r}") from None
