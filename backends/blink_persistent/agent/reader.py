"""From the ring to the workers: one bulk read of the statuses, then the tokens that they count."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from blink_persistent.agent.flights import Flights, generated, states
from blink_persistent.agent.mirror import SCHEDULER_HALF, Mirror
from blink_persistent.agent.port import Region, RingPort, Span
from blink_persistent.agent.spans import Joined, join
from blink_persistent.ring import STATUS, TIMING, SlotState

_MOST_SLOTS = 512  # of one turn, so that submits do not wait for many tokens

Vector = npt.NDArray[Any]


class AnswerReader:
    """Brings the mirror's answers up to date. One thread; calls raise `PortLost`.

    `notify(range)` is called at most twice a turn for each range with news. Of a slot its tokens
    are shown first, then its ticket, then its state word.
    """

    def __init__(
        self, mirror: Mirror, port: RingPort, flights: Flights, notify: Callable[[int], None]
    ) -> None:
        self._mirror = mirror
        self.port = port
        self._flights = flights
        self._notify = notify
        self._turn = 0  # the slot at which the next turn begins, where one cannot serve all

    def read(self, *, with_header: bool) -> bool:
        """One turn; whether there was news. What is beyond the most of a turn is left to the next.

        Slots that have their first token come before all others, then round about from where the
        last turn ended.
        """
        first, end = self._flights.window()
        spans = [Span(Region.STATUS, first * STATUS.itemsize, (end - first) * STATUS.itemsize)]
        if with_header:
            half = SCHEDULER_HALF
            spans.append(Span(Region.HEADER, half.start, half.stop - half.start))
        if not any(span.length for span in spans):
            return False
        buffers = self.port.read(spans)
        if with_header:
            self._mirror.show_header(buffers[1])
        slots, statuses = self._flights.news(first, buffers[0].view(np.uint64).reshape(-1, 2))
        if not slots.size:
            return False
        urgent = (self._flights.fetched[slots] == 0) & (generated(statuses) > 0)
        others = (~urgent).nonzero()[0]
        others = np.roll(others, -int(np.searchsorted(slots[others], self._turn)))
        order = np.concatenate((urgent.nonzero()[0], others))[:_MOST_SLOTS]
        count = min(int(urgent.sum()), len(order))
        for chosen in (order[:count], order[count:]):
            if chosen.size:
                self._take_over(slots[chosen], statuses[chosen])
        self._turn = int(slots[order[-1]]) + 1
        return True

    def _take_over(self, slots: Vector, statuses: Vector) -> None:
        flights = self._flights
        completed = slots[states(statuses) == SlotState.DECODE_COMPLETED]
        size = TIMING.itemsize
        timings = ((slot * size, (slot + 1) * size) for slot in completed.tolist())
        self._fetch({Region.OUTPUTS: self._tokens(slots, statuses), Region.TIMINGS: timings})
        self._mirror.ring.atomic.publish(slots.astype(np.uint32), statuses)
        flights.show(slots, statuses)
        for range_ in np.unique(slots // self._mirror.ring.slots_per_range).tolist():
            self._notify(range_)

    def _tokens(self, slots: Vector, statuses: Vector) -> Iterator[tuple[int, int]]:
        """(start, end) of each slot's new tokens and log-probabilities, in bytes."""
        flights = self._flights
        first, end = flights.fetched[slots], generated(statuses)
        grown = (end > first).nonzero()[0]
        slots, first, end = slots[grown], first[grown], end[grown]
        for base, size in (
            (flights.tokens_at[slots], 4),
            (flights.logprobs_at[slots], flights.entry_bytes[slots]),
        ):
            starts, ends = base + first * size, base + end * size
            yield from zip(starts.tolist(), ends.tolist(), strict=True)

    def _fetch(self, wanted: Mapping[Region, Iterable[tuple[int, int]]]) -> None:
        """Copy these bytes, (start, end) in their region, from the ring to the mirror.

        With as few reads as can be: what lies between is read over, but left alone in the mirror.
        """
        port = self.port
        joined = [
            (region, span)
            for region, spans in wanted.items()
            for span in join(spans, gap=port.cheap_gap, longest=port.longest_read)
        ]
        for group in _groups(joined, port.longest_read):
            spans = [Span(region, span.start, span.end - span.start) for region, span in group]
            for (region, span), buffer in zip(group, port.read(spans), strict=True):
                mirror = self._mirror.bytes_of[region]
                for start, end in span.members:
                    mirror[start:end] = buffer[start - span.start : end - span.start]


def _groups(
    spans: list[tuple[Region, Joined]], longest: int
) -> Iterator[list[tuple[Region, Joined]]]:
    """Spans in groups of at most `longest` bytes."""
    group: list[tuple[Region, Joined]] = []
    size = 0
    for region, span in spans:
        length = span.end - span.start
        if group and size + length > longest:
            yield group
            group, size = [], 0
        group.append((region, span))
        size += length
    if group:
        yield group
