"""A session whose streams follow a script: for tests of everything above `blink_server.backend`.

A script is a list of steps: a `TokenEvent` is given to the consumer, an `asyncio.Event` is waited
for, an exception is raised. `answer` writes the usual script: a text, token by token.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from blink_server.backend import (
    Backend,
    Endpoint,
    FinishReason,
    GenerateRequest,
    GraphLaunches,
    ModelVersion,
    RequestTiming,
    SchedulerStats,
    Session,
    SessionLimits,
    SlotTable,
    TokenEvent,
    TokenLogprob,
)
from blink_server.errors import InvalidRequest, Overloaded, Problem, Unavailable
from blink_server.text.tokenizers import Tokenizer

Step = TokenEvent | asyncio.Event | Exception
Respond = Callable[[GenerateRequest], Iterable[Step]]

TIMING = RequestTiming(1_000_000, 2_000_000, 5_000_000, 9_000_000)
"""The time stamps on scripted last events: 1 ms queue, 3 ms prefill, 4 ms decode."""

STATS = SchedulerStats(
    rows=8,
    rows_used=3,
    waiting=2,
    kv_usage=0.375,
    kv_blocks=64,
    kv_block_tokens=16,
    prompt_tokens=600,
    generated_tokens=400,
    steps=100,
    decode_launches=90,
    prefill_launches=6,
    mixed_launches=4,
    tail_launches=1,
    launch_retries=4,
    preemptions=5,
    parks=2,
    gaps=80,
    gap_seconds=0.004,
    agent_turns=50,
    agent_reads=70,
    agent_read_bytes=1400,
    agent_writes=20,
    agent_written_bytes=300,
    agent_reconnections=1,
    graphs=(
        GraphLaunches("decode", 8, 8, 90),
        GraphLaunches("prefill", 2, 64, 6),
        GraphLaunches("mixed", 2, 64, 4, rows=8),
    ),
)
"""What a session may tell of its scheduler."""

SLOTS = SlotTable(
    states=np.array([0, 3, 3, 1], np.uint8),
    tickets=np.array([0, 1, 2, 1], np.uint32),
    generated=np.array([0, 5, 6, 0], np.uint32),
    ages=np.array([0, 1, 1, 0.5]),
    slots_per_range=4,
)
"""And of its ring."""


def events(
    token_ids: Sequence[int],
    *,
    reason: FinishReason = FinishReason.STOP,
    per_event: int = 1,
    logprobs: int | None = None,
) -> list[TokenEvent]:
    """A whole stream of `token_ids`, `per_event` at a time, that ends with `reason`.

    `logprobs`: how many best tokens each token's log-probability tells; None for none at all.
    """
    groups = [
        list(token_ids[start : start + per_event]) for start in range(0, len(token_ids), per_event)
    ] or [[]]
    last = len(groups) - 1
    return [
        TokenEvent(
            group,
            None if logprobs is None else [_logprob(token_id, logprobs) for token_id in group],
            reason if place == last else None,
            TIMING if place == last else None,
        )
        for place, group in enumerate(groups)
    ]


def _logprob(token_id: int, count: int) -> TokenLogprob:
    best = tuple((token_id + place, -0.5 - place) for place in range(count))
    return TokenLogprob(token_id, -0.5, best)


def answer(tokenizer: Tokenizer, text: str, *, eos: int, per_event: int = 1) -> Respond:
    """A rule that answers every request with `text` and the end-of-sequence id `eos`.

    It obeys the request's `max_tokens`, `stop_token_ids`, `ignore_eos` and log-probabilities.
    """
    token_ids = [*tokenizer.encode(text, add_special_tokens=False), eos]

    def respond(request: GenerateRequest) -> Iterable[Step]:
        stops = set(request.stop_token_ids) | (set() if request.ignore_eos else {eos})
        ends = [place + 1 for place, token_id in enumerate(token_ids) if token_id in stops]
        end = min(ends, default=len(token_ids))
        cut = end > request.max_tokens or not ends
        return events(
            token_ids[: min(end, request.max_tokens)],
            reason=FinishReason.LENGTH if cut else FinishReason.STOP,
            per_event=per_event,
            logprobs=request.sampling.logprobs,
        )

    return respond


class FakeStream:
    """A `TokenStream` that follows its script; `cancelled` is set by the first `cancel`."""

    def __init__(self, script: Iterable[Step], on_end: Callable[[], None]) -> None:
        self._script = script
        self._on_end = on_end
        self._ended = False
        self.cancelled = asyncio.Event()

    def cancel(self) -> None:
        """See `TokenStream.cancel`."""
        self.cancelled.set()
        self._end()

    async def __aiter__(self) -> AsyncIterator[TokenEvent]:
        try:
            for step in self._script:
                if isinstance(step, asyncio.Event):
                    await self._wait(step)
                if self.cancelled.is_set():
                    yield TokenEvent([], None, FinishReason.CANCELLED, TIMING)
                    return
                if isinstance(step, Exception):
                    raise step
                if isinstance(step, TokenEvent):
                    if step.reason is not None:
                        self._end()
                    yield step
        finally:
            self._end()

    async def _wait(self, event: asyncio.Event) -> None:
        waits = {asyncio.ensure_future(one.wait()) for one in (event, self.cancelled)}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._on_end()


class FakeSession:
    """A `Session` that answers by `respond`; it keeps every request and stream for inspection.

    `free_slots` limits what may be in flight. After `shut` every submit is refused as a closed
    endpoint refuses it; `idle` is set while nothing is in flight.
    """

    def __init__(
        self, respond: Respond, limits: SessionLimits, *, free_slots: int | None = None
    ) -> None:
        self.limits = limits
        self.requests: list[GenerateRequest] = []
        self.streams: list[FakeStream] = []
        self.config: Mapping[str, Any] = {}
        self.idle = asyncio.Event()
        self.idle.set()
        self._respond = respond
        self._free_slots = free_slots
        self._in_flight = 0
        self._shut: str | None = None
        self._callbacks: list[Callable[[str], None]] = []
        self._attempts = 0
        self._attempt = asyncio.Event()

    async def attempted(self, count: int) -> None:
        """Return when `submit` has been called `count` times, refused or not."""
        while self._attempts < count:
            self._attempt.clear()
            await self._attempt.wait()

    async def submit(self, request: GenerateRequest) -> FakeStream:
        """See `Session.submit`."""
        self._attempts += 1
        self._attempt.set()
        if self._shut is not None:
            raise Unavailable(self._shut)
        if len(request.prompt_ids) + request.max_tokens > self.limits.context_length:
            raise InvalidRequest("prompt and max_tokens are over the context", param="max_tokens")
        if self._free_slots is not None and self._in_flight >= self._free_slots:
            raise Overloaded("no slot is free", retry_after=2.0)
        self.requests.append(request)
        self._in_flight += 1
        self.idle.clear()
        stream = FakeStream(self._respond(request), self._gave_back)
        self.streams.append(stream)
        return stream

    def _gave_back(self) -> None:
        self._in_flight -= 1
        if not self._in_flight:
            self.idle.set()

    @property
    def in_flight(self) -> int:
        """See `Session.in_flight`."""
        return self._in_flight

    def configure(self, config: Mapping[str, Any]) -> None:
        """Keeps what it was told in `config`."""
        self.config = config

    def stats(self) -> SchedulerStats | None:
        """There is no scheduler."""
        return None

    def slots(self) -> SlotTable | None:
        """There is no ring."""
        return None

    def on_closed(self, callback: Callable[[str], None]) -> None:
        """See `Session.on_closed`."""
        self._callbacks.append(callback)

    def shut(self, reason: str = "the endpoint is closed") -> None:
        """The other side goes away: later submits are refused, `on_closed` callbacks called."""
        if self._shut is None:
            self._shut = reason
            for callback in self._callbacks:
                callback(reason)

    async def close(self) -> None:
        """See `Session.close`."""
        self._shut = self._shut or "the session is closed"
        for stream in self.streams:
            stream.cancel()


@dataclass
class FakeBackend:
    """A `Backend` whose every connection is made by `make_session`; it builds and runs nothing."""

    make_session: Callable[[ModelVersion, Endpoint], Session]
    name: str = "fake"
    problems: Sequence[Problem] = ()
    memory_bytes: int = 0
    command: Sequence[str] = ()
    connected: list[tuple[str, Endpoint]] = field(default_factory=list)

    def check(self, version: ModelVersion) -> Sequence[Problem]:
        """The problems it was made with."""
        return self.problems

    def estimate(self, version: ModelVersion) -> int:
        """The `memory_bytes` it was made with."""
        return self.memory_bytes

    def build(
        self,
        checkpoint: Any,
        directory: Path,
        *,
        limits: Mapping[str, int],
        options: Mapping[str, Any],
        progress: Callable[[str, float], None],
    ) -> NoReturn:
        """It has no engine files; raises NotImplementedError."""
        raise NotImplementedError("the fake backend builds nothing")

    def runner_command(self, version: ModelVersion, *, threads: int) -> Sequence[str]:
        """The `command` it was made with."""
        return self.command

    async def connect(self, version: ModelVersion, endpoint: Endpoint) -> Session:
        """A session of `make_session`."""
        self.connected.append((version.key, endpoint))
        return self.make_session(version, endpoint)


if TYPE_CHECKING:
    _session: type[Session] = FakeSession
    _backend: type[Backend] = FakeBackend
