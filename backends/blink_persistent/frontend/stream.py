"""The events of one request, from its session to its consumer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence

from blink_server.backend import FinishReason, RequestTiming, TokenEvent, TokenLogprob
from blink_server.errors import EngineFailure


class RingStream:
    """Fulfils `TokenStream`. What arrives while the consumer is busy becomes one event."""

    __slots__ = ("_cancel", "_failure", "_logprobs", "_reason", "_timing", "_tokens", "_waiter")

    def __init__(self, cancel: Callable[[], None]) -> None:
        """`cancel` cancels the request in its slot, as long as it has not ended."""
        self._cancel: Callable[[], None] | None = cancel
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._reason: FinishReason | None = None
        self._timing: RequestTiming | None = None
        self._failure: EngineFailure | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def ended(self) -> bool:
        """Whether `end` or `fail` was called."""
        return self._cancel is None

    def cancel(self) -> None:
        """Make the request end soon; once it has ended this does nothing."""
        if self._cancel is not None:
            self._cancel()

    async def __aiter__(self) -> AsyncGenerator[TokenEvent, None]:
        """The events, for one consumer; cancels where it leaves before the last."""
        try:
            while True:
                if self._tokens or self._reason is not None:
                    event = self._take()
                    yield event
                    if event.reason is not None:
                        return
                elif self._failure is not None:
                    raise self._failure
                else:
                    self._waiter = asyncio.get_running_loop().create_future()
                    await self._waiter
        finally:
            self.cancel()

    def _take(self) -> TokenEvent:
        event = TokenEvent(self._tokens, self._logprobs or None, self._reason, self._timing)
        self._tokens, self._logprobs = [], []
        return event

    def add(self, tokens: list[int], logprobs: Sequence[TokenLogprob]) -> None:
        """Tokens became visible, with an entry each in `logprobs` where they were asked for."""
        self._tokens += tokens
        self._logprobs += logprobs
        self._wake()

    def end(self, reason: FinishReason, timing: RequestTiming) -> None:
        """The request has ended, all its tokens were added."""
        self._cancel = None
        self._reason, self._timing = reason, timing
        self._wake()

    def fail(self, failure: EngineFailure) -> None:
        """The request cannot be finished; raised after the tokens that were added."""
        self._cancel = None
        self._failure = failure
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
