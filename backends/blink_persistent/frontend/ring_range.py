"""The part of a ring that one frontend owns: its reads and writes of that memory.

Slots are counted from the range's first; offsets are words from the start of the range's arenas.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from blink_persistent.frontend.grammars import GrammarSpan
from blink_persistent.frontend.record import PreparedRequest
from blink_persistent.frontend.space import Place
from blink_persistent.ring import Ring, SlotState
from blink_server.backend import RequestTiming, TokenLogprob
from blink_server.errors import Unavailable

_TICKET = np.uint64(0xFFFFFFFF)
_BYTE_SHIFT, _STATE_SHIFT = np.uint64(56), np.uint64(32)


class RingRange:
    """Range `index` of `ring`. Raises `Unavailable` where a slot of it is still in use."""

    def __init__(self, ring: Ring, index: int) -> None:
        first, count = index * ring.slots_per_range, ring.slots_per_range
        self.slot_count = count
        self._first = first
        self._epoch = ring.epoch << 32
        self._atomic = ring.atomic
        self._records = ring.records[first : first + count]
        self._timings = ring.timings[first : first + count]
        self._prompts = ring.prompts[index]
        self._outputs = ring.outputs[index]
        self._aux = ring.aux[index]
        self.prompt_words = len(self._prompts)
        self.output_words = len(self._outputs)
        self.aux_words = len(self._aux)
        self.tickets = [self._atomic.submitted(slot) for slot in range(first, first + count)]
        """Each slot's `submit` word; the next ticket is the one after it."""
        self._now = np.empty((count, 2), np.uint64)
        self._atomic.read_statuses(first, self._now)
        self._seen = self._now[:, 1].copy()
        self._expected = np.zeros(count, np.uint64)  # ticket and epoch that are accepted
        self._expected_byte = np.zeros(count, np.uint64)
        self._check_empty()

    def _check_empty(self) -> None:
        state = self._seen >> _STATE_SHIFT & np.uint64(0xFF)
        tickets = self._now[:, 0] & _TICKET
        free = (state == SlotState.EMPTY) & (tickets == np.array(self.tickets, np.uint64))
        if not free.all():
            slot = self._first + int(np.flatnonzero(~free)[0])
            raise Unavailable(f"slot {slot} of the ring still belongs to an earlier owner")

    def drop(self) -> None:
        """Let go of the memory, so that it can be unmapped; no other call may follow."""
        del self._atomic, self._records, self._timings, self._prompts, self._outputs, self._aux

    def accepting(self) -> bool:
        """Whether the scheduler still takes new requests."""
        return self._atomic.accepting()

    def write_aux(self, offset: int, words: npt.NDArray[np.int32]) -> None:
        """Put words into the aux arena, of which nothing in progress uses that part."""
        self._aux[offset : offset + len(words)] = words

    def submit(
        self, place: Place, prepared: PreparedRequest, grammar: GrammarSpan, ticket: int
    ) -> None:
        """Write a request's data and record, then announce it under `ticket`.

        The slot's last status was {its last ticket, EMPTY}, the place's spans are its own, and the
        grammar is written.
        """
        slot, prompt, aux = place.slot, prepared.prompt, prepared.aux
        self._prompts[place.prompt : place.prompt + len(prompt)] = prompt
        if place.aux is not None:
            self.write_aux(place.aux, aux)
        self._records[slot] = prepared.record(place, grammar)
        self._expected[slot] = ticket | self._epoch
        self._expected_byte[slot] = ticket & 0xFF
        self.tickets[slot] = ticket
        self._atomic.submit(self._first + slot, ticket)

    def cancel(self, slot: int) -> None:
        """Ask the scheduler to end the slot's request."""
        self._atomic.cancel(self._first + slot, self.tickets[slot])

    def release(self, slot: int) -> None:
        """Tell the scheduler that the slot's finished request has been read."""
        self._atomic.release(self._first + slot, self.tickets[slot])

    def changes(self, high: int) -> Iterable[tuple[int, int]]:
        """(slot, status word) of the slots below `high` with news since the last call.

        A status counts only if its ticket, its epoch and the ticket byte in its word are those of
        the slot's request: the parts of a status may date from different moments.
        """
        now = self._now[:high]
        self._atomic.read_statuses(self._first, now)
        words = now[:, 1]
        accepted = (
            (words != self._seen[:high])
            & (now[:, 0] == self._expected[:high])
            & (words >> _BYTE_SHIFT == self._expected_byte[:high])
        )
        slots = accepted.nonzero()[0]
        if not slots.size:
            return ()
        news = words[slots]
        self._seen[slots] = news
        return zip(slots.tolist(), news.tolist(), strict=True)

    def tokens(self, place: Place, first: int, end: int) -> list[int]:
        """Generated tokens [first, end) of a request."""
        tokens: list[int] = self._outputs[place.output + first : place.output + end].tolist()
        return tokens

    def logprobs(
        self, place: Place, prepared: PreparedRequest, first: int, end: int, tokens: list[int]
    ) -> list[TokenLogprob]:
        """Log-probabilities of the generated tokens [first, end), which are `tokens`."""
        words, top = prepared.entry_words, prepared.top
        start = place.output + prepared.max_tokens
        words_of_tokens = self._outputs[start + first * words : start + end * words]
        entries = words_of_tokens.reshape(-1, words)
        # {f32 chosen, i32 id[top], f32 logprob[top]}, read once as each type.
        integers: list[list[int]] = entries.tolist()
        floats: list[list[float]] = entries.view(np.float32).tolist()
        return [
            TokenLogprob(
                token, values[0], tuple(zip(ids[1 : 1 + top], values[1 + top :], strict=True))
            )
            for token, ids, values in zip(tokens, integers, floats, strict=True)
        ]

    def timing(self, slot: int) -> RequestTiming:
        """Time stamps of the slot's request; complete once it is completed."""
        stamps: npt.NDArray[np.void] = self._timings[slot]
        return RequestTiming(
            claimed_ns=int(stamps["claimed_ns"]),
            prefill_ns=int(stamps["prefill_ns"]),
            first_token_ns=int(stamps["first_token_ns"]),
            finished_ns=int(stamps["finished_ns"]),
        )
