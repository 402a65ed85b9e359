"""The backend `fake`: a plugin whose versions are served by `fake_runner` processes."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
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
from blink_server.errors import EngineFailure, InvalidModel, Problem, RunnerLost, Unavailable
from blink_server.hookspecs import hookimpl
from blink_server.testing.fake_runner import OPTIONS_FILE, TRANSPORT, FakeOptions

_VOCABULARY = 1 << 20  # larger than any test's tokenizer; the runner echoes whatever it is given


@hookimpl
def blink_backends() -> Sequence[FakeRunnerBackend]:
    """`fake`."""
    return [FakeRunnerBackend()]


class FakeRunnerBackend:
    """Fulfils `Backend` with real processes and no engine."""

    name = "fake"

    def __init__(self, memory_bytes: int = 1 << 20) -> None:
        self._memory_bytes = memory_bytes
        self.threads: dict[str, int] = {}  # given at the last start of each version's runner

    def check(self, version: ModelVersion) -> Sequence[Problem]:
        """Refuses a `fake.json` that the runner cannot read."""
        try:
            FakeOptions.read(version.directory)
        except (TypeError, ValueError) as error:
            return [Problem(version.directory / OPTIONS_FILE, "", None, str(error))]
        return []

    def estimate(self, version: ModelVersion) -> int:
        """The bytes given to the constructor."""
        return self._memory_bytes

    def build(
        self,
        checkpoint: Any,
        directory: Path,
        *,
        limits: Mapping[str, Any],
        options: Mapping[str, Any],
        progress: Callable[[str, float], None],
    ) -> BuildResult:
        """There is nothing to build: always raises InvalidModel."""
        raise InvalidModel([Problem(directory, "", None, "the backend 'fake' builds no models")])

    def runner_command(self, version: ModelVersion, *, threads: int) -> Sequence[str]:
        """The fake runner, by this interpreter."""
        self.threads[version.key] = threads
        return [sys.executable, "-m", "blink_server.testing.fake_runner"]

    async def connect(self, version: ModelVersion, endpoint: Endpoint) -> Session:
        """Connect to the runner's request socket. Raises Unavailable."""
        if endpoint.transport != TRANSPORT:
            raise Unavailable(f"the backend 'fake' has no transport {endpoint.transport!r}")
        try:
            reader, writer = await asyncio.open_unix_connection(endpoint.address["socket"])
        except OSError as error:
            raise Unavailable(f"runner of {version.key}: {error.strerror}") from None
        config = version.config
        limits = SessionLimits(
            context_length=config["limits"]["context_length"],
            vocabulary_size=_VOCABULARY,
            eos_token_ids=tuple(config["eos_token_ids"]),
            max_logprobs=0,
        )
        return FakeRunnerSession(limits, reader, writer)


class _Stream:
    def __init__(self, session: FakeRunnerSession, number: int) -> None:
        self._session = session
        self._number = number
        self.events: asyncio.Queue[TokenEvent | EngineFailure] = asyncio.Queue()
        self._submitted_ns = time.monotonic_ns()
        self._first_ns = 0

    async def __aiter__(self) -> AsyncIterator[TokenEvent]:
        while True:
            event = await self.events.get()
            if isinstance(event, EngineFailure):
                raise event
            yield event
            if event.reason is not None:
                return

    def received(self, answer: Mapping[str, Any]) -> None:
        now, timing = time.monotonic_ns(), None
        self._first_ns = self._first_ns or (now if answer["token_ids"] else 0)
        reason = FinishReason(answer["reason"]) if answer["reason"] else None
        if reason is not None:
            timing = RequestTiming(self._submitted_ns, self._submitted_ns, self._first_ns, now)
        self.events.put_nowait(TokenEvent(answer["token_ids"], reason=reason, timing=timing))

    def cancel(self) -> None:
        self._session.send({"id": self._number, "cancel": True})


class FakeRunnerSession:
    """One worker's connection to one fake runner."""

    def __init__(
        self,
        limits: SessionLimits,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.limits = limits
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count(1)
        self._streams: dict[int, _Stream] = {}
        self._closed_reason = ""
        self._callbacks: list[Callable[[str], None]] = []
        self._task = asyncio.create_task(self._receive())

    async def submit(self, request: GenerateRequest) -> TokenStream:
        """Send the request. Raises Unavailable when the runner is gone."""
        if self._closed_reason:
            raise Unavailable(self._closed_reason)
        number = next(self._numbers)
        stream = self._streams[number] = _Stream(self, number)
        prompt_ids, max_tokens = list(request.prompt_ids), request.max_tokens
        self.send({"id": number, "prompt_ids": prompt_ids, "max_tokens": max_tokens})
        return stream

    @property
    def in_flight(self) -> int:
        """Requests that have not ended."""
        return len(self._streams)

    def configure(self, config: Mapping[str, Any]) -> None:
        """There is no queue to limit."""

    def stats(self) -> SchedulerStats | None:
        """There is no scheduler."""
        return None

    def slots(self) -> SlotTable | None:
        """There is no ring."""
        return None

    def on_closed(self, callback: Callable[[str], None]) -> None:
        """Call back once with the reason, at once if the runner is gone already."""
        if self._closed_reason:
            callback(self._closed_reason)
        else:
            self._callbacks.append(callback)

    async def close(self) -> None:
        """Disconnect; the runner then cancels what is in flight."""
        self._callbacks.clear()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._end("the session was closed")
        self._writer.close()

    def send(self, message: Mapping[str, Any]) -> None:
        """Write one line."""
        if not self._writer.is_closing():
            self._writer.write(json.dumps(message).encode() + b"\n")

    async def _receive(self) -> None:
        try:
            while line := await self._reader.readline():
                self._received(json.loads(line))
        except ConnectionError:
            pass
        self._end("the runner is gone")

    def _received(self, answer: Mapping[str, Any]) -> None:
        stream = self._streams.get(answer["id"])
        if stream is None:
            return
        stream.received(answer)
        if answer["reason"]:
            del self._streams[answer["id"]]

    def _end(self, reason: str) -> None:
        self._closed_reason = self._closed_reason or reason
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.events.put_nowait(RunnerLost(reason))
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(reason)
