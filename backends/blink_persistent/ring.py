"""A ring in this process's memory: numpy views built from the native layout table.

No offset is typed here: dtypes come from `ring_layout.h` through the native module. Words that
order other data (submit, release, cancel, status) are read and written through `Ring.atomic`.
"""

from __future__ import annotations

import mmap
import os
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from blink_persistent import _native

LAYOUT_HASH: int = _native.LAYOUT_HASH

_LAUNCHES = ("decode_launches", "prefill_launches", "mixed_launches")
_C_TYPES: dict[str, Any] = {
    "uint32_t": "<u4",
    "int32_t": "<i4",
    "uint64_t": "<u8",
    "float": "<f4",
    "GraphLaunches": ("<u4", (_native.SHOWN_GRAPHS,)),
}


class SlotState(IntEnum):
    """States of a slot, set by the scheduler only (`SlotState` in ring_layout.h)."""

    EMPTY = 0
    PREFILL_PENDING = 1
    PREFILL_PROCESSING = 2
    DECODE_PROCESSING = 3
    DECODE_PAUSED = 4
    DECODE_COMPLETED = 5


class Reason(IntEnum):
    """Why a request ended (`Reason` in ring_layout.h)."""

    NONE = 0
    END_OF_SEQUENCE = 1
    STOP_TOKEN = 2
    MAX_TOKENS = 3
    CONTEXT_LIMIT = 4
    CANCELLED = 5
    CLOSED = 6
    INVALID_RECORD = 7
    KV_EXHAUSTED = 8
    BAD_TOKEN = 9
    ENGINE_ERROR = 10


class Command(IntEnum):
    """What the host asks of the scheduler (`Command` in ring_layout.h)."""

    RUN = 0
    PARK = 1
    STOP = 2


class Condition(IntEnum):
    """What the scheduler says of itself (`SchedulerCondition` in ring_layout.h)."""

    STARTING = 0
    RUNNING = 1
    PARKED = 2
    STOPPED = 3
    FAILED = 4


def _dtype(struct: str) -> np.dtype[Any]:
    size, fields = _native.layout_table()[struct]
    return np.dtype(
        {
            "names": [name for name, *_ in fields],
            "formats": [_C_TYPES[c_type] for _, c_type, *_ in fields],
            "offsets": [offset for _, _, offset, _ in fields],
            "itemsize": size,
        }
    )


HEADER = _dtype("RingHeader")
RECORD = _dtype("RequestRecord")
TIMING = _dtype("SlotTiming")
WORDS = _dtype("FrontendWords")
STATUS = _dtype("SlotStatus")


def unpack_status(word: int) -> tuple[int, SlotState, Reason, int]:
    """(generated, state, reason, ticket byte) of a status word."""
    return word & 0xFFFFFFFF, SlotState(word >> 32 & 0xFF), Reason(word >> 40 & 0xFF), word >> 56


class Ring:
    """A mapped ring. Attributes are numpy views over the shared memory; nothing is copied.

    `header` is one HEADER record, `records`, `timings`, `words` and `status` have one entry a slot;
    `prompts`, `outputs` and `aux` are int32 [range, words]. `words` and `status` are for who copies
    them to or from another memory; who shares this memory with a scheduler uses `atomic`. Raises
    ValueError naming both layout hashes where the memory was made by another build.
    """

    def __init__(self, memory: mmap.mmap | npt.NDArray[np.uint8]) -> None:
        self._memory = memory
        raw = np.frombuffer(memory, dtype=np.uint8)
        self.atomic = _native.Ring(raw)
        self.header = raw[: HEADER.itemsize].view(HEADER)[0:1]
        slots, ranges = int(self.field("slot_count")), int(self.field("range_count"))

        def region(name: str, dtype: Any, count: int) -> npt.NDArray[Any]:
            start = int(self.field(name))
            return raw[start : start + count * np.dtype(dtype).itemsize].view(dtype)

        def arena(offset: str, words: str) -> npt.NDArray[np.int32]:
            return region(offset, np.int32, ranges * int(self.field(words))).reshape(ranges, -1)

        self.slot_count = slots
        self.slots_per_range = slots // ranges
        self.range_count = ranges
        self.epoch = int(self.field("epoch"))
        self.records = region("records_offset", RECORD, slots)
        self.timings = region("timings_offset", TIMING, slots)
        self.words = region("words_offset", WORDS, slots)
        self.status = region("status_offset", STATUS, slots)
        self.prompts = arena("prompts_offset", "prompt_words_per_range")
        self.outputs = arena("outputs_offset", "output_words_per_range")
        self.aux = arena("aux_offset", "aux_words_per_range")

    def in_flight(self, first_range: int, ranges: int) -> int:
        """Slots of these ranges that are not {submit, EMPTY}, as of now."""
        busy = self._busy(first_range * self.slots_per_range, ranges * self.slots_per_range)
        return int(busy.sum())

    def _busy(self, first: int, count: int) -> npt.NDArray[np.bool_]:
        """bool [count]: slots from `first` on that are not {submit, EMPTY}."""
        status, words = np.empty((count, 2), np.uint64), np.empty((count, 4), np.uint32)
        self.atomic.read_statuses(first, status)
        self.atomic.read_words(first, words)
        claimed = status[:, 0] & np.uint64(0xFFFFFFFF) == words[:, 0]
        empty = status[:, 1] >> np.uint64(32) & np.uint64(0xFF) == SlotState.EMPTY
        busy: npt.NDArray[np.bool_] = ~(claimed & empty)
        return busy

    def cancel_all(self, range_: int) -> int:
        """Write cancel = release = submit where a slot is not {submit, EMPTY}; how many that are.

        For who has taken the range over from its owner.
        """
        first = range_ * self.slots_per_range
        busy = (self._busy(first, self.slots_per_range).nonzero()[0] + first).tolist()
        for slot in busy:
            submit = self.atomic.submitted(slot)
            self.atomic.cancel(slot, submit)
            self.atomic.release(slot, submit)
        return len(busy)

    def launched(self) -> int:
        """Steps launched so far, of all phases; `steps` of them have ended."""
        return sum(map(self.field, _LAUNCHES))

    def field(self, name: str) -> int:
        """A header field's present value."""
        return int(self.header[name][0])


def create_ring_memory(shape: _native.RingShape, epoch: int) -> tuple[int, mmap.mmap]:
    """A new ring in a memfd: (file descriptor, mapping). The descriptor can be passed on."""
    fd = os.memfd_create("blink-ring", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, shape.total_bytes)
        memory = mmap.mmap(fd, shape.total_bytes)
    except BaseException:
        os.close(fd)
        raise
    _native.create_ring(np.frombuffer(memory, dtype=np.uint8), shape, epoch)
    return fd, memory
