"""A network card that is slow in every way that a reliable connection's one-sided verbs allow.

    port = SimulatedPort(MemoryPort(...), ring, chance=random.Random(1), meanwhile=pass_or_not)

Writes land late and in order, the words of one in any order among themselves; a bulk read finds
each 8-byte word at a moment of its own; a connection is cut with any part of the queue delivered,
also in the midst of a write, between two packets. `meanwhile` is called between any two of these
moments: it is the scheduler's chance to run.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from blink_persistent.agent.memory_port import MemoryPort
from blink_persistent.agent.port import Bytes, PortLost, Region, Span
from blink_persistent.ring import WORDS, Ring

_PACKET = 256  # bytes: the smallest that a path may carry


@dataclass(slots=True)
class Traffic:
    """What went over the wire."""

    reads: int = 0  # spans; each is one READ
    read_bytes: int = 0
    writes: int = 0
    written_bytes: int = 0
    waits: int = 0  # round trips: calls of `read`


class SimulatedPort:
    """Fulfils `RingPort` over another port's memory; `ring` is the whole ring there."""

    cheap_gap = MemoryPort.cheap_gap
    longest_read = MemoryPort.longest_read

    def __init__(
        self,
        inner: MemoryPort,
        ring: Ring,
        *,
        chance: random.Random,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        self.epoch = inner.epoch
        self.first_range = inner.first_range
        self.ranges = inner.ranges
        self.all_ranges = inner.all_ranges
        self.traffic = Traffic()
        self._inner = inner
        self._ring = ring
        self._first_slot = inner.first_range * ring.slots_per_range
        self._chance = chance
        self._meanwhile = meanwhile
        self._queue: deque[tuple[Region, int, Bytes]] = deque()
        self._is_cut = False
        self.cut_after = -1
        """The connection breaks at so many calls from now; -1 is never."""

    def read(self, spans: Sequence[Span]) -> list[Bytes]:
        """After all writes before it; each word from one of two moments."""
        self._check()
        self.traffic.waits += 1
        self.traffic.reads += len(spans)
        self.traffic.read_bytes += sum(span.length for span in spans)
        self.land(len(self._queue))
        early = self._inner.read(spans)
        self._meanwhile()
        late = self._inner.read(spans)
        for one, other in zip(early, late, strict=True):
            words = len(one) // 8
            before, after = one[: 8 * words].view(np.uint64), other[: 8 * words].view(np.uint64)
            differ = (before != after).nonzero()[0].tolist()
            chosen = [word for word in differ if self._chance.random() < 0.5]
            before[chosen] = after[chosen]
        self._meanwhile()
        return early

    def write(self, region: Region, offset: int, data: Bytes) -> None:
        """Queue it; it lands when the card likes, or with the next read."""
        self._check()
        self.traffic.writes += 1
        self.traffic.written_bytes += data.nbytes
        self._queue.append((region, offset, data.copy()))

    def post(self) -> None:
        """A part of the queue lands."""
        self._check()
        self.land(self._chance.randint(0, len(self._queue)))

    def close(self) -> None:
        """Whatever is queued lands, as far as the connection stands."""
        if not self._is_cut:
            self.land(len(self._queue))

    def land(self, count: int) -> None:
        """Deliver the first `count` writes of the queue."""
        for _ in range(count):
            self._land_one(*self._queue.popleft())
            self._meanwhile()

    def cut(self) -> None:
        """Break the connection for good, with any part of the queue delivered."""
        self.land(self._chance.randint(0, len(self._queue)))
        if self._queue:
            region, offset, data = self._queue[0]
            packets = self._chance.randint(0, (data.nbytes - 1) // _PACKET)
            self._land_one(region, offset, data[: packets * _PACKET])
        self._queue.clear()
        self._is_cut = True

    def _check(self) -> None:
        if self.cut_after == 0:
            self.cut()
        self.cut_after -= 1
        if self._is_cut:
            raise PortLost("the connection was cut")

    def _land_one(self, region: Region, offset: int, data: Bytes) -> None:
        if region is Region.WORDS:
            self._land_words(offset, data)
        else:
            self._land_data(region, offset, data)

    def _land_data(self, region: Region, offset: int, data: Bytes) -> None:
        """One part of its bytes, and after a while all of them."""
        first = self._chance.randint(0, data.nbytes // 4) * 4
        late = self._chance.randint(first, data.nbytes // 4 * 4)
        for start, end in ((0, first), (late, data.nbytes)):
            if start < end:
                self._inner.write(region, offset + start, data[start:end])
        self._meanwhile()
        self._inner.write(region, offset, data)

    def _land_words(self, offset: int, data: Bytes) -> None:
        atomic, first = self._ring.atomic, self._first_slot + offset // WORDS.itemsize
        words = np.frombuffer(data.tobytes(), np.uint32).reshape(-1, 4).tolist()
        stores: list[Callable[[], None]] = []
        for slot, (submit, release, cancel, _) in enumerate(words, first):
            stores += [
                partial(atomic.submit, slot, submit),
                partial(atomic.release, slot, release),
                partial(atomic.cancel, slot, cancel),
            ]
        self._chance.shuffle(stores)
        pause = self._chance.randint(0, len(stores))
        for store in stores[:pause]:
            store()
        self._meanwhile()
        for store in stores[pause:]:
            store()
