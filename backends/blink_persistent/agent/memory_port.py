"""A ring in this machine's memory, reached like one elsewhere: for tests, without hardware."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Sequence

import numpy as np

from blink_persistent.agent.port import Bytes, Region, Span, header_of, parts, place
from blink_persistent.ring import STATUS, WORDS, Ring


class MemoryPort:
    """Fulfils `RingPort` over mapped memory; rings the host scheduler's bell where it has one."""

    cheap_gap = 64
    longest_read = 1 << 22

    def __init__(
        self, memory: mmap.mmap | Bytes, *, first_range: int, ranges: int, doorbell: int = -1
    ) -> None:
        """Raises Unavailable where the memory holds no such ring."""
        raw = np.frombuffer(memory, np.uint8)
        header = header_of(raw)
        self.epoch = int(header["epoch"][0])
        self.first_range = first_range
        self.ranges = ranges
        self.all_ranges = int(header["range_count"][0])
        self._parts = parts(header, first_range, ranges)
        self._raw = raw
        self._ring = Ring(raw)
        self._doorbell = doorbell

    def read(self, spans: Sequence[Span]) -> list[Bytes]:
        """Copies of the spans."""
        return [self._read(span) for span in spans]

    def write(self, region: Region, offset: int, data: Bytes) -> None:
        """Write at once."""
        start = place(self._parts, region, offset, data.nbytes)
        if region is Region.WORDS:
            self._write_words(start, data)
        else:
            self._raw[start : start + data.nbytes] = data

    def post(self) -> None:
        """Wake the scheduler."""
        if self._doorbell >= 0:
            with contextlib.suppress(BlockingIOError):  # a full counter has woken it already
                os.eventfd_write(self._doorbell, 1)

    def close(self) -> None:
        """Let go of the memory."""
        del self._raw, self._ring

    def _read(self, span: Span) -> Bytes:
        start = place(self._parts, span.region, span.offset, span.length)
        if span.region is not Region.STATUS:
            return self._raw[start : start + span.length].copy()
        statuses = np.empty((span.length // STATUS.itemsize, 2), np.uint64)
        self._ring.atomic.read_statuses(self._slot(start, Region.STATUS), statuses)
        return statuses.reshape(-1).view(np.uint8)

    def _write_words(self, start: int, data: Bytes) -> None:
        """Each word with release order, after the data that it announces."""
        atomic, first = self._ring.atomic, self._slot(start, Region.WORDS)
        words = np.frombuffer(data.tobytes(), np.uint32).reshape(-1, 4).tolist()
        for slot, (submit, release, cancel, _) in enumerate(words, first):
            atomic.submit(slot, submit)
            atomic.release(slot, release)
            atomic.cancel(slot, cancel)

    def _slot(self, start: int, region: Region) -> int:
        """The ring's slot whose words or status begin at this byte of the ring."""
        offset, size = {
            Region.WORDS: ("words_offset", WORDS.itemsize),
            Region.STATUS: ("status_offset", STATUS.itemsize),
        }[region]
        return (start - self._ring.field(offset)) // size
