"""What the agent knows of the request in each slot, as vectors over its slots."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from blink_persistent import _native
from blink_persistent.ring import Ring, SlotState

_STATE_SHIFT, _BYTE_SHIFT, _BYTE = np.uint64(32), np.uint64(56), np.uint64(0xFF)
_LOW = np.uint64(0xFFFFFFFF)
NOBODYS = np.iinfo(np.int64).max  # tokens fetched of a request that an earlier agent sent

Vector = npt.NDArray[Any]


class Flights:
    """One thread's. A slot is in flight from its submit until {its ticket, EMPTY} was shown."""

    def __init__(self, ring: Ring, words: npt.NDArray[np.uint32]) -> None:
        """`words`, uint32 [slots, 4], are the ring's frontend words. What they have submitted is
        in flight at first, as far as the agent knows; its tokens are nobody's."""
        count = ring.slot_count
        self._epoch = np.uint64(ring.epoch << 32)
        self._output_words = len(ring.outputs[0])
        self._per_range = ring.slots_per_range
        self._logprob_words = np.array(
            [_native.logprob_words(n) for n in range(_native.MAX_TOP_LOGPROBS + 2)], np.int64
        )
        tickets = words[:, 0].astype(np.uint64)
        self.in_flight: Vector = tickets != 0
        self.expected: Vector = tickets | self._epoch
        self.shown: Vector = np.zeros((count, 2), np.uint64)
        """uint64 [slots, 2]: the statuses that the mirror has."""
        self.fetched: Vector = np.full(count, NOBODYS)
        """Tokens in the mirror."""
        self.tokens_at: Vector = np.zeros(count, np.int64)  # bytes of the OUTPUTS region
        self.logprobs_at: Vector = np.zeros(count, np.int64)
        self.entry_bytes: Vector = np.zeros(count, np.int64)  # of a token's log-probabilities

    def begin(self, slots: Vector, tickets: Vector, records: Vector) -> None:
        """New requests; int64 [n], uint32 [n], RECORD [n]."""
        self.in_flight[slots] = True
        self.expected[slots] = tickets.astype(np.uint64) | self._epoch
        self.fetched[slots] = 0
        base = slots // self._per_range * self._output_words
        self.tokens_at[slots] = 4 * (base + records["output_offset"])
        self.logprobs_at[slots] = 4 * (base + records["logprobs_offset"])
        # More than the most is an invalid record, which the scheduler ends without a token.
        logprobs = np.minimum(records["logprobs"], len(self._logprob_words) - 1)
        self.entry_bytes[slots] = 4 * self._logprob_words[logprobs]

    def window(self) -> tuple[int, int]:
        """[first, end) of the slots in flight; (0, 0) where none is."""
        slots = self.in_flight.nonzero()[0]
        return (int(slots[0]), int(slots[-1]) + 1) if slots.size else (0, 0)

    def news(self, first: int, now: Vector) -> tuple[Vector, Vector]:
        """(slots, their statuses) of what is new in `now`, uint64 [n, 2] from slot `first` on.

        The reader's rule: a status counts only if its ticket, its epoch and the ticket byte of its
        state word are those of the slot's request, for its two words may be of different moments.
        """
        window = slice(first, first + len(now))
        expected, shown = self.expected[window], self.shown[window]
        accepted = (
            (now[:, 0] == expected)
            & (now[:, 1] >> _BYTE_SHIFT == expected & _BYTE)
            & ((now[:, 1] != shown[:, 1]) | (now[:, 0] != shown[:, 0]))
            & self.in_flight[window]
        )
        slots = accepted.nonzero()[0]
        return slots + first, now[slots]

    def show(self, slots: Vector, statuses: Vector) -> None:
        """These statuses are in the mirror now, with all that they count."""
        self.shown[slots] = statuses
        empty = states(statuses) == SlotState.EMPTY
        self.in_flight[slots[empty]] = False
        busy = slots[~empty]
        self.fetched[busy] = np.maximum(self.fetched[busy], generated(statuses[~empty]))


def generated(statuses: Vector) -> Vector:
    """int64 [n]: tokens that each of these statuses, uint64 [n, 2], counts."""
    return (statuses[:, 1] & _LOW).astype(np.int64)


def states(statuses: Vector) -> Vector:
    """uint64 [n]: the `SlotState` of each status."""
    return statuses[:, 1] >> _STATE_SHIFT & _BYTE
