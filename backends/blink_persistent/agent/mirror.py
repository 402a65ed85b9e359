"""The ring of another memory as workers see it here: a ring of its own, with the agent between.

Two arrays with one direction each make it up: the *requests* (frontend words, records, prompts,
auxiliary data), which workers write and the agent sends, and the *answers* (status, timings,
outputs, the scheduler's half of the header), which the agent fetches and workers read.
"""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

from blink_persistent import _native
from blink_persistent.agent.port import Bytes, Region, RingPort, Span, header_of
from blink_persistent.ring import HEADER, WORDS, Ring, create_ring_memory


def _scheduler_half() -> slice:
    """The bytes of the header that the scheduler writes."""
    _, fields = _native.layout_table()["RingHeader"]
    offsets = {name: offset for name, _, offset, writer in fields if writer == "scheduler"}
    last = max(offsets, key=offsets.__getitem__)
    return slice(min(offsets.values()), offsets[last] + HEADER[last].itemsize)


SCHEDULER_HALF = _scheduler_half()


class Mirror:
    """Belongs to one ring and its epoch, and never to another.

    Over a ring that was in use before, it begins with that ring's frontend words, so that tickets
    go on from there. `ring` has the agent's ranges only, counted from 0. `bytes_of` has a uint8
    view for every region. `fd` is the memory, to be passed on.
    """

    def __init__(self, port: RingPort) -> None:
        """Raises `PortLost`, or `Unavailable` where the ring has another layout."""
        header = header_of(port.read([Span(Region.HEADER, 0, HEADER.itemsize)])[0]).copy()

        def field(name: str) -> int:
            return int(header[name][0])

        shape = _native.RingShape(
            ranges=port.ranges,
            slots_per_range=field("slots_per_range"),
            prompt_words=field("prompt_words_per_range"),
            output_words=field("output_words_per_range"),
            aux_words=field("aux_words_per_range"),
        )
        self.fd, memory = create_ring_memory(shape, field("epoch"))
        self.ring = Ring(memory)
        ring = self.ring
        self.bytes_of: dict[Region, Bytes] = {
            Region.HEADER: ring.header.view(np.uint8),
            Region.WORDS: ring.words.view(np.uint8),
            Region.STATUS: ring.status.view(np.uint8),
            Region.RECORDS: ring.records.view(np.uint8),
            Region.TIMINGS: ring.timings.view(np.uint8),
            Region.PROMPTS: ring.prompts.reshape(-1).view(np.uint8),
            Region.OUTPUTS: ring.outputs.reshape(-1).view(np.uint8),
            Region.AUX: ring.aux.reshape(-1).view(np.uint8),
        }
        self.show_header(header.view(np.uint8)[SCHEDULER_HALF])
        words = port.read([Span(Region.WORDS, 0, ring.slot_count * WORDS.itemsize)])[0]
        self.bytes_of[Region.WORDS][:] = words

    def words(self) -> npt.NDArray[np.uint32]:
        """uint32 [slots, 4]: a copy of {submit, release, cancel, 0} as of now."""
        words = np.empty((self.ring.slot_count, 4), np.uint32)
        self.ring.atomic.read_words(0, words)
        return words

    def show_header(self, half: Bytes) -> None:
        """Take over the scheduler's half of the ring's header."""
        self.bytes_of[Region.HEADER][SCHEDULER_HALF] = half

    def close(self) -> None:
        """Let go of the memory; workers that have it mapped keep it."""
        os.close(self.fd)
