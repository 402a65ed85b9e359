"""A frontend in its plainest form, over any `Ring`: it writes requests and looks at answers."""

from __future__ import annotations

import numpy as np

from blink_persistent import _native
from blink_persistent.ring import Ring, SlotState, unpack_status
from blink_persistent.testing.observed import Status
from blink_persistent.testing.scripted_request import ScriptedRequest
from blink_persistent.testing.scripted_shape import ScriptedShape


class PlainFrontend:
    """Each slot has places of its own in the arenas, as in `ScriptedHarness`."""

    def __init__(self, ring: Ring, shape: ScriptedShape) -> None:
        self.ring = ring
        self._shape = shape

    def submit(self, slot: int, request: ScriptedRequest) -> int:
        """Write the record, then its ticket, the one after the slot's last; the ticket."""
        shape, ring = self._shape, self.ring
        range_, part = divmod(slot, shape.slots_per_range)
        place, outputs = part * shape.context_length, part * shape.output_words
        prompt = np.asarray(request.prompt, np.int32)[: shape.context_length]
        ring.prompts[range_][place : place + len(prompt)] = prompt
        ring.aux[range_][place : place + len(request.stop)] = request.stop
        fields = request.record_fields() | {
            "prompt_offset": place,
            "output_offset": outputs,
            "logprobs_offset": outputs + shape.context_length,
            "stop_offset": place,
        }
        for name, value in (fields | dict(request.overrides)).items():
            ring.records[name][slot] = value
        ticket: int = _native.ticket_after(ring.atomic.submitted(slot))
        ring.atomic.submit(slot, ticket)
        return ticket

    def cancel(self, slot: int) -> None:
        """Cancel the slot's last ticket."""
        self.ring.atomic.cancel(slot, self.ring.atomic.submitted(slot))

    def release(self, slot: int) -> None:
        """Release the slot's last ticket."""
        self.ring.atomic.release(slot, self.ring.atomic.submitted(slot))

    def accepted(self, slot: int) -> Status | None:
        """The status, if it is the last ticket's by the reader's rule."""
        ticket, epoch, word = self.ring.atomic.status(slot)
        status = Status(ticket, epoch, *unpack_status(word))
        mine = status.belongs_to(self.ring.atomic.submitted(slot), self.ring.epoch)
        return status if mine else None

    def is_empty(self, slot: int) -> bool:
        """Whether the slot may be written again: never used, or {its last ticket, EMPTY}."""
        if self.ring.atomic.submitted(slot) == 0:
            return True
        status = self.accepted(slot)
        return status is not None and status.state is SlotState.EMPTY

    def output(self, slot: int) -> tuple[int, ...]:
        """Tokens published for the last ticket."""
        status = self.accepted(slot)
        start = int(self.ring.records["output_offset"][slot])
        tokens = self.ring.outputs[slot // self._shape.slots_per_range]
        return tuple(tokens[start : start + (status.generated if status else 0)].tolist())
