"""What the agent needs of a transport: a few primitives on a ring in another memory."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from blink_persistent.ring import HEADER, LAYOUT_HASH, RECORD, STATUS, TIMING, WORDS
from blink_server.errors import BlinkError, Unavailable

Bytes = npt.NDArray[np.uint8]

PADDING = 1 << 16
"""Bytes beside the longest read of a port that aligns its spans, enough for 8,192 of them."""


class PortLost(BlinkError):
    """The ring cannot be reached any more; what was written last may have landed or not."""


class Region(IntEnum):
    """The ring's regions; each may be a memory region of its own at the transport."""

    HEADER = 0
    WORDS = 1
    STATUS = 2
    RECORDS = 3
    TIMINGS = 4
    PROMPTS = 5
    OUTPUTS = 6
    AUX = 7


class Span(NamedTuple):
    """Bytes of a region. `offset` counts from the agent's part of it, in HEADER from its start."""

    region: Region
    offset: int
    length: int


class RingPort(Protocol):
    """One agent's way to its ranges of a ring. Used by one thread; all calls raise `PortLost`.

    The agent rests on four promises, no more:

    - writes become visible at the ring in the order of the calls, each whole before the next;
    - a read sees what was in the ring after the call began, each aligned 8-byte word of a moment
      of its own, and what the agent has written before;
    - `write` has taken its data when it returns, so that the caller may change it;
    - nothing of a port lands after `close` has returned.
    """

    epoch: int
    """The ring's."""
    first_range: int
    ranges: int
    """Ranges of the ring that are the agent's: consecutive, its part of every region."""
    all_ranges: int
    """Ranges of the whole ring."""
    cheap_gap: int
    """Bytes between two spans that are read over in less time than a further span takes."""
    longest_read: int
    """Bytes that the spans of one `read` may have together."""

    def read(self, spans: Sequence[Span]) -> list[Bytes]:
        """Fetch spans, together and in any order; waits for them. The buffers are the port's own
        (pinned, or registered with a device) and valid until the next read."""
        ...

    def write(self, region: Region, offset: int, data: Bytes) -> None:
        """Queue a write of contiguous bytes; waits only while the port's queue is full."""
        ...

    def post(self) -> None:
        """Start everything queued, and wake whoever must be told of it."""
        ...

    def close(self) -> None:
        """Wait until what was posted has landed or never will, then let go of the ring."""
        ...


class Part(NamedTuple):
    """Where the agent's part of a region lies in the ring, in bytes."""

    start: int
    length: int


def header_of(raw: Bytes) -> npt.NDArray[Any]:
    """HEADER [1] over a ring's first bytes. Raises Unavailable where another build made them."""
    header = raw[: HEADER.itemsize].view(HEADER)
    theirs = int(header["layout_hash"][0])
    if theirs != LAYOUT_HASH:
        raise Unavailable(
            f"the ring's layout {theirs:016x} differs from the agent's {LAYOUT_HASH:016x}"
        )
    return header


def parts(header: npt.NDArray[Any], first_range: int, ranges: int) -> dict[Region, Part]:
    """The parts of ranges [first_range, first_range + ranges). Raises Unavailable beyond the ring.

    `header` is HEADER [1].
    """

    def field(name: str) -> int:
        return int(header[name][0])

    if not 0 <= first_range < first_range + ranges <= field("range_count"):
        raise Unavailable(
            f"the ring has {field('range_count')} ranges, not {ranges} from number {first_range} on"
        )
    slots = field("slots_per_range")

    def part(offset: str, bytes_per_range: int) -> Part:
        return Part(field(offset) + first_range * bytes_per_range, ranges * bytes_per_range)

    return {
        Region.HEADER: Part(0, HEADER.itemsize),
        Region.WORDS: part("words_offset", slots * WORDS.itemsize),
        Region.STATUS: part("status_offset", slots * STATUS.itemsize),
        Region.RECORDS: part("records_offset", slots * RECORD.itemsize),
        Region.TIMINGS: part("timings_offset", slots * TIMING.itemsize),
        Region.PROMPTS: part("prompts_offset", 4 * field("prompt_words_per_range")),
        Region.OUTPUTS: part("outputs_offset", 4 * field("output_words_per_range")),
        Region.AUX: part("aux_offset", 4 * field("aux_words_per_range")),
    }


def place(region_parts: dict[Region, Part], region: Region, offset: int, length: int) -> int:
    """The byte of the ring where a span begins. Raises ValueError outside the agent's part."""
    part = region_parts[region]
    if not 0 <= offset <= offset + length <= part.length:
        raise ValueError(
            f"bytes {offset} to {offset + length} are outside the {part.length} of {region.name}"
        )
    return part.start + offset
