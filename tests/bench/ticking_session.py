"""A scripted scheduler: every step gives each request in flight one token, at a set rate.

It costs next to nothing, so that what a worker spends is what text and HTTP cost.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from blink_server.backend import (
    FinishReason,
    GenerateRequest,
    SessionLimits,
    TokenEvent,
)


class TickingStream:
    """One request's tokens, as the ticks bring them."""

    def __init__(self, tokens: Sequence[int], count: int, on_end: Callable[[], None]) -> None:
        self._tokens = tokens
        self._left = count
        self._place = 0
        self._ready: list[int] = []
        self._waiter: asyncio.Future[None] | None = None
        self._on_end = on_end

    def tick(self) -> None:
        """One more token."""
        if self._left:
            self._ready.append(self._tokens[self._place % len(self._tokens)])
            self._place += 1
            self._left -= 1
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def cancel(self) -> None:
        """See `TokenStream.cancel`."""
        self._left = 0
        self.tick()
        self._end()

    def _end(self) -> None:
        on_end, self._on_end = self._on_end, lambda: None
        on_end()

    async def __aiter__(self) -> AsyncIterator[TokenEvent]:
        loop = asyncio.get_running_loop()
        while True:
            if not self._ready and self._left:
                self._waiter = loop.create_future()
                await self._waiter
            ready, self._ready = self._ready, []
            if not self._left:
                self._end()
                yield TokenEvent(ready, None, FinishReason.LENGTH)
                return
            if ready:
                yield TokenEvent(ready)


class TickingSession:
    """A `Session`: `step_seconds` between two tokens of a request.

    A request for one token gets it at once: what passes until its client has it is the worker's.
    """

    def __init__(
        self, tokens: Sequence[int], limits: SessionLimits, *, step_seconds: float
    ) -> None:
        self.limits = limits
        self._tokens = tokens
        self._step = step_seconds
        self._streams: dict[int, TickingStream] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._next = 0.0
        self._submitted = 0

    async def submit(self, request: GenerateRequest) -> TickingStream:
        """See `Session.submit`."""
        self._submitted += 1
        number = self._submitted
        stream = TickingStream(
            self._tokens, request.max_tokens, lambda: self._streams.pop(number, None)
        )
        self._streams[number] = stream
        if request.max_tokens == 1:
            stream.tick()
        elif self._timer is None:
            self._next = asyncio.get_running_loop().time()
            self._schedule()
        return stream

    def _schedule(self) -> None:
        loop = asyncio.get_running_loop()
        # The rate is kept even where a step comes late; lost steps are not made up for.
        self._next = max(self._next + self._step, loop.time() - self._step)
        self._timer = loop.call_at(self._next, self._tick)

    def _tick(self) -> None:
        self._timer = None
        for stream in list(self._streams.values()):
            stream.tick()
        if self._streams:
            self._schedule()

    @property
    def in_flight(self) -> int:
        """See `Session.in_flight`."""
        return len(self._streams)

    def on_closed(self, callback: Callable[[str], None]) -> None:
        """See `Session.on_closed`: it never closes."""

    async def close(self) -> None:
        """See `Session.close`."""
        for stream in list(self._streams.values()):
            stream.cancel()
