"""A `Session` over one range of one ring.

The scheduler rings the range's bell after a step; one look at the statuses of the slots in use
then finds what changed. A slot goes free -> submitted -> completed -> released -> free, and is
written to again only after {its ticket, EMPTY} was read.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from blink_persistent import _native
from blink_persistent.frontend.ending import ending
from blink_persistent.frontend.grammars import GrammarSpan, GrammarStore, Table
from blink_persistent.frontend.grant import Grant
from blink_persistent.frontend.record import PreparedRequest, prepare
from blink_persistent.frontend.ring_range import RingRange
from blink_persistent.frontend.space import Place, Space
from blink_persistent.frontend.stream import RingStream
from blink_persistent.frontend.watching import scheduler_stats, slot_table
from blink_persistent.ring import Reason, Ring, SlotState
from blink_server.backend import GenerateRequest, SchedulerStats, SlotTable
from blink_server.errors import EngineFailure, Overloaded, RunnerLost, Unavailable

_SAFETY_POLL_SECONDS = 0.1  # in case a ring of the bell was lost
_CLOSE_SECONDS = 2.0

# Plain integers: compared for every changed slot of every step.
_EMPTY, _PENDING = int(SlotState.EMPTY), int(SlotState.PREFILL_PENDING)
_COMPLETED = int(SlotState.DECODE_COMPLETED)


@dataclass(frozen=True, slots=True)
class Bells:
    """Two non-blocking eventfds, owned by whoever made the session."""

    scheduler: int  # rung by the session
    range: int  # rung by the scheduler


@dataclass(slots=True)
class _Flight:
    """A request from its submit until its slot is empty again."""

    place: Place
    prepared: PreparedRequest
    request_id: str
    stream: RingStream
    grammar: str | None  # digest of the one it holds
    fetched: int = 0  # tokens handed to the stream
    waiting: bool = True  # has not been seen past PREFILL_PENDING


class RingSession:
    """Fulfils `Session`. Everything is called on the event loop that made it."""

    def __init__(self, ring: Ring, grant: Grant, bells: Bells, detach: Callable[[], None]) -> None:
        """`detach` is called once, when the session has let go of ring and bells.

        Of `max_queue` each range has an equal share, rounded up: requests beyond it that would
        have to wait are refused. Raises `Unavailable` where the range is not empty.
        """
        self.limits = grant.limits
        self._ring: Ring | None = ring
        self._grant = grant
        self._range = RingRange(ring, grant.range)
        self._space = Space(
            slots=self._range.slot_count,
            prompt_words=self._range.prompt_words,
            output_words=self._range.output_words,
            aux_words=self._range.aux_words,
        )
        self._grammars = GrammarStore(self._space.aux, grant.limits, self._range.write_aux)
        self._longest_queue = -(-grant.max_queue // ring.range_count)
        self._waiting = 0
        self._bells = bells
        self._detach = detach
        self._flights: dict[int, _Flight] = {}
        self._poll: asyncio.TimerHandle | None = None
        self._refusal = ""  # why nothing more may be submitted
        self._lost_reason = ""  # why the other side is gone
        self._callbacks: list[Callable[[str], None]] = []
        self._idle = asyncio.Event()  # only waited for once no submit can come
        self._closed: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(bells.range, self._on_bell)

    async def submit(self, request: GenerateRequest) -> RingStream:
        """See `Session.submit`; it waits for nothing but a grammar that is not known yet."""
        grammar = request.grammar
        table = None
        if grammar is not None:
            self._check_open()
            table = await self._grammars.table(grammar)
        self._check_open()
        prepared = prepare(request, self.limits)
        digest = None if grammar is None else grammar.digest
        try:
            place, span = self._take_place(prepared, digest, table)
        except Overloaded:
            self._collect()  # what has ended since the last ring of the bell makes room
            place, span = self._take_place(prepared, digest, table)
        slot = place.slot
        ticket = _native.ticket_after(self._range.tickets[slot])
        stream = RingStream(partial(self._cancel, slot))
        flight = _Flight(place, prepared, request.request_id, stream, digest)
        try:
            self._range.submit(place, prepared, span, ticket)
        except BaseException:
            self._give_place(flight)
            raise
        self._ring_scheduler()
        self._flights[slot] = flight
        self._waiting += 1
        if self._poll is None:
            self._poll = self._loop.call_later(_SAFETY_POLL_SECONDS, self._on_poll)
        return stream

    @property
    def in_flight(self) -> int:
        """Requests submitted whose slot has not been given back."""
        return len(self._flights)

    def configure(self, config: Mapping[str, Any]) -> None:
        """See `Session.configure`. The ring here may be an agent's part of the version's."""
        limits = config["limits"]
        self._longest_queue = -(-limits["max_queue"] * self._range.slot_count // limits["slots"])

    def stats(self) -> SchedulerStats | None:
        """The ring header's counters; None once the ring is let go."""
        return None if self._ring is None else scheduler_stats(self._ring, self._grant)

    def slots(self) -> SlotTable | None:
        """The statuses of the whole ring; None once it is let go."""
        return None if self._ring is None else slot_table(self._ring)

    def on_closed(self, callback: Callable[[str], None]) -> None:
        """Call `callback(reason)` once when the other side is gone, at once if it is gone now."""
        if self._lost_reason:
            callback(self._lost_reason)
        else:
            self._callbacks.append(callback)

    def lose(self, reason: str) -> None:
        """The other side is gone: end every stream with `RunnerLost`. Called by the transport.

        What it had published by then is still delivered.
        """
        if self._lost_reason or (self._closed is not None and self._closed.done()):
            return
        self._lost_reason = reason
        self._refusal = self._refusal or reason
        self._collect()
        self._stop_watching()
        self._fail_all(reason)
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(reason)

    async def close(self) -> None:
        """Cancel what is in flight, wait a short while until its slots are empty, and detach."""
        if self._closed is not None:
            await asyncio.shield(self._closed)
            return
        self._closed = self._loop.create_future()
        self._refusal = "the session is closed"
        self._callbacks.clear()
        try:
            for flight in list(self._flights.values()):
                flight.stream.cancel()
            if self._flights:
                self._idle.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._idle.wait(), _CLOSE_SECONDS)
        finally:
            self._stop_watching()
            self._fail_all(self._refusal)
            self._range.drop()
            self._ring = None
            self._detach()
            self._closed.set_result(None)

    def _check_open(self) -> None:
        if self._refusal:
            raise Unavailable(self._refusal)
        if not self._range.accepting():
            raise Unavailable("the endpoint is closing")

    def _take_place(
        self, prepared: PreparedRequest, digest: str | None, table: Table | None
    ) -> tuple[Place, GrammarSpan]:
        if self._waiting >= self._longest_queue:
            raise Overloaded(f"this worker's queue is full: {self._waiting} waiting")
        place = self._space.take(
            prompt_words=len(prepared.prompt),
            output_words=prepared.output_words,
            aux_words=len(prepared.aux),
        )
        if digest is None or table is None:
            return place, GrammarSpan()
        try:
            return place, self._grammars.hold(digest, table)
        except BaseException:
            self._space.give(place)
            raise

    def _give_place(self, flight: _Flight) -> None:
        self._space.give(flight.place)
        if flight.grammar is not None:
            self._grammars.release(flight.grammar)

    def _cancel(self, slot: int) -> None:
        self._range.cancel(slot)
        self._ring_scheduler()

    def _ring_scheduler(self) -> None:
        with contextlib.suppress(BlockingIOError):  # a full counter has woken it already
            os.eventfd_write(self._bells.scheduler, 1)

    def _on_bell(self) -> None:
        with contextlib.suppress(BlockingIOError):  # another reader of the bell was faster
            os.eventfd_read(self._bells.range)
        self._collect()

    def _on_poll(self) -> None:
        self._poll = None
        self._collect()
        if self._flights:
            self._poll = self._loop.call_later(_SAFETY_POLL_SECONDS, self._on_poll)

    def _collect(self) -> None:
        """Hand on what is new in the statuses of all slots in use."""
        released = False
        for slot, word in self._range.changes(self._space.slots.high):
            flight = self._flights[slot]
            generated, state = word & 0xFFFFFFFF, word >> 32 & 0xFF
            if generated > flight.fetched:
                self._fetch(flight, generated)
            if flight.waiting and state != _PENDING:
                flight.waiting = False
                self._waiting -= 1
            if state == _COMPLETED:
                self._finish(flight, Reason(word >> 40 & 0xFF))
                released = True
            elif state == _EMPTY:
                self._give_back(flight)
        if released:
            self._ring_scheduler()

    def _fetch(self, flight: _Flight, generated: int) -> None:
        place, first = flight.place, flight.fetched
        tokens = self._range.tokens(place, first, generated)
        prepared = flight.prepared
        flight.stream.add(
            tokens,
            self._range.logprobs(place, prepared, first, generated, tokens)
            if prepared.entry_words
            else (),
        )
        flight.fetched = generated

    def _finish(self, flight: _Flight, reason: Reason) -> None:
        slot = flight.place.slot
        end = ending(reason, flight.request_id)
        if isinstance(end, EngineFailure):
            flight.stream.fail(end)
        else:
            flight.stream.end(end, self._range.timing(slot))
        self._range.release(slot)

    def _give_back(self, flight: _Flight) -> None:
        if not flight.stream.ended:  # somebody else has released it
            flight.stream.fail(
                RunnerLost(f"request {flight.request_id!r}: its slot was taken back")
            )
        del self._flights[flight.place.slot]
        self._give_place(flight)
        if not self._flights:
            self._idle.set()

    def _stop_watching(self) -> None:
        self._loop.remove_reader(self._bells.range)
        if self._poll is not None:
            self._poll.cancel()
            self._poll = None

    def _fail_all(self, reason: str) -> None:
        flights, self._flights = self._flights, {}
        self._waiting = 0
        failure = RunnerLost if self._lost_reason else EngineFailure
        for flight in flights.values():
            if flight.stream.ended:
                continue
            flight.stream.fail(failure(f"request {flight.request_id!r} failed: {reason}"))
        self._idle.set()
