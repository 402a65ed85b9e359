"""Backends without a process of their own: they serve inside the workers, on their event loops."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

from blink_server.backend import (
    BuildResult,
    Endpoint,
    FinishReason,
    GenerateRequest,
    ModelVersion,
    RequestTiming,
    SchedulerStats,
    Session,
    SessionLimits,
    SlotTable,
    TokenEvent,
    TokenStream,
)
from blink_server.errors import (
    EngineFailure,
    InvalidModel,
    InvalidRequest,
    Overloaded,
    Problem,
    Unavailable,
)

ANY_TOKEN = (1 << 31) - 1  # a vocabulary that has every id

Generate = Callable[[GenerateRequest], AsyncGenerator[TokenEvent, None]]


class ProcesslessBackend(ABC):
    """The part of `Backend` that is alike where the workers serve; a subclass has a `name`."""

    name: str

    @abstractmethod
    async def connect(self, version: ModelVersion, endpoint: Endpoint) -> Session:
        """A worker begins to serve a version. Raises Unavailable."""

    def check(self, version: ModelVersion) -> Sequence[Problem]:
        """Problems beyond the schemas: none."""
        return ()

    def estimate(self, version: ModelVersion) -> int:
        """Bytes of memory that a version needs: none worth counting."""
        return 0

    def build(
        self,
        checkpoint: Any,
        directory: Path,
        *,
        limits: Mapping[str, int],
        options: Mapping[str, Any],
        progress: Callable[[str, float], None],
    ) -> BuildResult:
        """There is nothing to build from weights: raises InvalidModel."""
        raise InvalidModel(
            [Problem(directory, "backend", self.name, "serves no weights; write its config.json")]
        )

    def runner_command(self, version: ModelVersion, *, threads: int) -> Sequence[str]:
        """None: the workers serve it themselves."""
        return ()


class WorkerBackend(ProcesslessBackend):
    """Fulfils `Backend`; a subclass has a `name` and writes `generate`.

    Nothing here may block: other requests of the worker wait meanwhile.
    """

    @abstractmethod
    def generate(
        self, version: ModelVersion, request: GenerateRequest
    ) -> AsyncGenerator[TokenEvent, None]:
        """An async generator of the answer's events; the last, and only it, has a reason.

        It is closed when the request is cancelled. What it raises ends the request: `BlinkError`s
        are told to the client, anything else is logged and becomes a 500.
        """

    def limits(self, version: ModelVersion) -> SessionLimits:
        """What a request may ask: config.json's context length, any token id."""
        return SessionLimits(
            context_length=version.config["limits"]["context_length"],
            vocabulary_size=ANY_TOKEN,
            eos_token_ids=tuple(version.config["eos_token_ids"]),
            max_logprobs=0,
        )

    async def connect(self, version: ModelVersion, endpoint: Endpoint) -> Session:
        """See `Backend.connect`."""
        return WorkerSession(self.limits(version), lambda request: self.generate(version, request))


class WorkerSession:
    """Fulfils `Session` with an async generator a request.

    No more than config.json's `limits.max_queue` are in flight in one worker.
    """

    def __init__(self, limits: SessionLimits, generate: Generate) -> None:
        self.limits = limits
        self._generate = generate
        self._most = 0  # 0: not configured yet
        self._streams: set[_WorkerStream] = set()
        self._closed = ""
        self._callbacks: list[Callable[[str], None]] = []

    async def submit(self, request: GenerateRequest) -> TokenStream:
        """Begin to generate. Raises as `Session.submit` does."""
        if self._closed:
            raise Unavailable(self._closed)
        if request.sampling.logprobs is not None:
            raise InvalidRequest("this model gives no log-probabilities", param="logprobs")
        if request.grammar is not None:
            raise InvalidRequest(
                "this model's answers cannot be constrained", param=request.grammar.param
            )
        if self._most and len(self._streams) >= self._most:
            raise Overloaded(f"{self._most} requests are in progress, the most there may be")
        stream = _WorkerStream(self._generate(request), self._streams.discard)
        self._streams.add(stream)
        return stream

    @property
    def in_flight(self) -> int:
        """See `Session.in_flight`."""
        return len(self._streams)

    def configure(self, config: Mapping[str, Any]) -> None:
        """See `Session.configure`."""
        self._most = config["limits"]["max_queue"]

    def stats(self) -> SchedulerStats | None:
        """There is no scheduler."""
        return None

    def slots(self) -> SlotTable | None:
        """There are none."""
        return None

    def on_closed(self, callback: Callable[[str], None]) -> None:
        """See `Session.on_closed`; at once if it is closed."""
        if self._closed:
            callback(self._closed)
        else:
            self._callbacks.append(callback)

    def lose(self, reason: str) -> None:
        """What is behind the session is gone: the worker will connect anew. Requests go on."""
        if not self._closed:
            self._closed = reason
            callbacks, self._callbacks = self._callbacks, []
            for callback in callbacks:
                callback(reason)

    async def close(self) -> None:
        """See `Session.close`."""
        self._callbacks.clear()
        self.lose("the session was closed")
        tasks = [stream.task for stream in self._streams]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _WorkerStream:
    """Fulfils `TokenStream`: a task runs the generator, so that `cancel` ends it wherever it is."""

    def __init__(
        self,
        events: AsyncGenerator[TokenEvent, None],
        ended: Callable[[_WorkerStream], None],
    ) -> None:
        self._queue: asyncio.Queue[TokenEvent | BaseException] = asyncio.Queue()
        self._ended = ended
        self._begun_ns = time.monotonic_ns()
        self._first_ns = 0
        self.task = asyncio.create_task(self._run(events))
        self.task.add_done_callback(self._done)

    def cancel(self) -> None:
        """See `TokenStream.cancel`."""
        self.task.cancel()

    async def __aiter__(self) -> AsyncIterator[TokenEvent]:
        while True:
            event = await self._queue.get()
            if isinstance(event, BaseException):
                raise event
            yield event
            if event.reason is not None:
                return

    async def _run(self, events: AsyncGenerator[TokenEvent, None]) -> None:
        async with aclosing(events):
            async for event in events:
                self._first_ns = self._first_ns or (time.monotonic_ns() if event.token_ids else 0)
                if event.reason is not None:
                    self._ended(self)
                    self._queue.put_nowait(replace(event, timing=event.timing or self._timing()))
                    return
                self._queue.put_nowait(event)
        raise EngineFailure("the backend ended the request without a reason")

    def _done(self, task: asyncio.Task[None]) -> None:
        self._ended(self)
        if task.cancelled():
            event = TokenEvent([], reason=FinishReason.CANCELLED, timing=self._timing())
            self._queue.put_nowait(event)
        elif (error := task.exception()) is not None:
            self._queue.put_nowait(error)

    def _timing(self) -> RequestTiming:
        return RequestTiming(self._begun_ns, self._begun_ns, self._first_ns, time.monotonic_ns())
