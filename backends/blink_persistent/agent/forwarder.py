"""From the workers to the ring: what they ask for first, then the words that announce it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from blink_persistent import _native
from blink_persistent.agent.flights import NOBODYS, Flights
from blink_persistent.agent.mirror import Mirror
from blink_persistent.agent.port import Region, RingPort
from blink_persistent.agent.sent_tables import SentTables
from blink_persistent.agent.spans import join
from blink_persistent.ring import RECORD, WORDS

_MOST_SUBMITS = 512  # of one turn, so that a burst of long prompts does not hold tokens up
_WORDS_GAP = 16 * WORDS.itemsize  # words between are sent once more: they are levels

Vector = npt.NDArray[Any]


class Forwarder:
    """Sends what is new in the mirror's requests. One thread; calls raise `PortLost`.

    `sent`, uint32 [slots, 4], are the ring's frontend words, of which the agent is the writer. A
    word is sent as a level: again at any time, but never before the record that it announces.
    """

    def __init__(self, mirror: Mirror, port: RingPort, flights: Flights) -> None:
        self._mirror = mirror
        self.port = port
        self._flights = flights
        self.sent = mirror.words()
        self._now = self.sent.copy()
        self._tables = SentTables()

    def forward(self) -> bool:
        """Send what workers have written since the last call; whether there was anything.

        A burst beyond the most that one call sends is left to the next.
        """
        now = self._now
        self._mirror.ring.atomic.read_words(0, now)
        # As 8-byte words, two a slot: by far the quickest look at thousands of slots.
        differ = now.view(np.uint64).reshape(-1) != self.sent.view(np.uint64).reshape(-1)
        words = differ.nonzero()[0]
        if not words.size:
            return False
        changed = np.unique(words // 2)
        submits = changed[now[changed, 0] != self.sent[changed, 0]]
        if len(submits) > _MOST_SUBMITS:
            changed = np.setdiff1d(changed, submits[_MOST_SUBMITS:], assume_unique=True)
            submits = submits[:_MOST_SUBMITS]
        if submits.size:
            # One copy, so that what is sent is what was looked at.
            records = self._mirror.ring.records[submits]
            self._flights.begin(submits, now[submits, 0], records)
            self._send_data(submits, records)
        self.sent[changed] = now[changed]
        self._send_words(changed)
        self.port.post()
        return True

    def send_again(self) -> None:
        """Send all that is in the ring, or may be, once more: after the old connection is gone.

        A request of which nobody knows whether it has arrived is neither lost by this nor run
        twice, since its ticket is the same.
        """
        self._tables.forget()
        flights = self._flights
        known = (flights.in_flight & (flights.fetched != NOBODYS)).nonzero()[0]
        if known.size:
            self._send_data(known, self._mirror.ring.records[known])
        self._send_words(np.arange(len(self.sent)))
        self.port.post()

    def _send_data(self, slots: Vector, records: Vector) -> None:
        spans = {Region.PROMPTS: self._prompts, Region.AUX: self._aux}
        for region, spans_of in spans.items():
            data = self._mirror.bytes_of[region]
            for span in join(spans_of(slots, records)):
                self.port.write(region, span.start, data[span.start : span.end])
        for first, end in _runs(slots):
            start = int(slots[first]) * RECORD.itemsize
            self.port.write(Region.RECORDS, start, records[first:end].view(np.uint8))

    def _prompts(self, slots: Vector, records: Vector) -> Iterator[tuple[int, int]]:
        words = len(self._mirror.ring.prompts[0])
        return self._spans(slots, records["prompt_offset"], records["prompt_length"], words)

    def _aux(self, slots: Vector, records: Vector) -> Iterator[tuple[int, int]]:
        words = len(self._mirror.ring.aux[0])
        pairs = 2 * records["bias_count"].astype(np.int64)
        lists = ((records["stop_offset"], records["stop_count"]), (records["bias_offset"], pairs))
        for offsets, counts in lists:
            for start, end in self._spans(slots, offsets, counts, words):
                self._tables.overwritten(start, end)
                yield start, end
        with_grammar = records["grammar_words"] > 0
        grammars = records[with_grammar]
        for start, end in self._spans(
            slots[with_grammar], grammars["grammar_offset"], grammars["grammar_words"], words
        ):
            table = self._mirror.bytes_of[Region.AUX][start:end].view(np.int32)
            if self._tables.must_send(start, end, _native.grammar_hash(table)):
                yield start, end

    def _spans(
        self, slots: Vector, offsets: Vector, counts: Vector, words: int
    ) -> Iterator[tuple[int, int]]:
        """Bytes in an arena whose ranges have `words`, of what lies within its range.

        What does not is left out: the scheduler refuses the record that says so.
        """
        offsets, counts = offsets.astype(np.int64), counts.astype(np.int64)
        starts = slots // self._mirror.ring.slots_per_range * words + offsets
        inside = offsets + counts <= words
        starts, ends = 4 * starts[inside], 4 * (starts + counts)[inside]
        yield from zip(starts.tolist(), ends.tolist(), strict=True)

    def _send_words(self, slots: Vector) -> None:
        size = WORDS.itemsize
        data = self.sent.reshape(-1).view(np.uint8)
        spans = ((slot * size, (slot + 1) * size) for slot in slots.tolist())
        for span in join(spans, gap=_WORDS_GAP):
            self.port.write(Region.WORDS, span.start, data[span.start : span.end])


def _runs(slots: Vector) -> Iterator[tuple[int, int]]:
    """[first, end) of each run of consecutive numbers in ascending `slots`."""
    breaks = (np.diff(slots) != 1).nonzero()[0] + 1
    edges = [0, *breaks.tolist(), len(slots)]
    return pairwise(edges)
