"""What a request takes of its range: a slot and a span of each arena, all of them or none."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from blink_persistent.frontend.arena import Arena
from blink_server.errors import InvalidRequest, Overloaded


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request lies: its slot, counted from the range's first, and offsets in words."""

    slot: int
    prompt: int
    output: int
    aux: int | None  # None where it needs no words there


class SlotPool:
    """Free slots of a range, lowest first, so that those in use stay close together."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count))
        self._used = bytearray(count)
        self.high = 0
        """No slot from here on is in use: as far as a look at the statuses must reach."""

    def take(self) -> int | None:
        """The lowest free slot, or None."""
        if not self._free:
            return None
        slot = heapq.heappop(self._free)
        self._used[slot] = 1
        self.high = max(self.high, slot + 1)
        return slot

    def give(self, slot: int) -> None:
        """The slot is free again."""
        self._used[slot] = 0
        heapq.heappush(self._free, slot)
        self.high = self._used.rfind(1, 0, self.high) + 1


class Space:
    """Slots and arenas of one range. Sizes in 4-byte words."""

    def __init__(self, *, slots: int, prompt_words: int, output_words: int, aux_words: int) -> None:
        self.slots = SlotPool(slots)
        self.prompts = Arena(prompt_words)
        self.outputs = Arena(output_words)
        self.aux = Arena(aux_words)

    def take(self, *, prompt_words: int, output_words: int, aux_words: int) -> Place:
        """A place with spans of these lengths; `aux_words` may be 0.

        Raises `Overloaded` where something is full now, `InvalidRequest` where the request would
        not fit an empty range.
        """
        slot = self.slots.take()
        if slot is None:
            raise Overloaded("every request slot of this worker is in use")
        taken: list[tuple[Arena, int]] = []
        try:
            for arena, words, param in (
                (self.prompts, prompt_words, "prompt"),
                (self.outputs, output_words, "max_tokens"),
                (self.aux, aux_words, "logit_bias"),
            ):
                if words:
                    taken.append((arena, _allocate(arena, words, param)))
        except BaseException:
            for arena, offset in taken:
                arena.free(offset)
            self.slots.give(slot)
            raise
        offsets = [offset for _, offset in taken]
        return Place(slot, offsets[0], offsets[1], offsets[2] if aux_words else None)

    def give(self, place: Place) -> None:
        """The place is free again."""
        self.prompts.free(place.prompt)
        self.outputs.free(place.output)
        if place.aux is not None:
            self.aux.free(place.aux)
        self.slots.give(place.slot)


def _allocate(arena: Arena, words: int, param: str) -> int:
    if words > arena.words:
        raise InvalidRequest(
            f"{param} needs {words} words of an arena that has {arena.words}", param=param
        )
    offset = arena.allocate(words)
    if offset is None:
        raise Overloaded(f"no memory is free now for the {param} of another request")
    return offset
