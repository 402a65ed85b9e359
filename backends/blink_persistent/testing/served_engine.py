"""A provisioned host engine behind a ring, without threads: the scheduler's passes are called."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from blink_persistent import _native
from blink_persistent.engines import Launch, Provisioned
from blink_persistent.ring import Ring, SlotState, create_ring_memory, unpack_status
from blink_persistent.testing.scripted_request import ScriptedRequest

SLOTS = 256
_MOST_PASSES = 10_000


class ServedEngine:
    """Passes and steps on the caller's thread; closes the engine with the context."""

    def __init__(self, provisioned: Provisioned) -> None:
        self.provisioned = provisioned
        self.context_length = provisioned.shape.context_length
        self._resources = ExitStack()
        self._resources.callback(provisioned.close)
        words = SLOTS * self.context_length
        shape = _native.RingShape(1, SLOTS, words, words, words)
        ring_fd, memory = create_ring_memory(shape, 1)
        bells = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(2)]
        for fd in (ring_fd, *bells):
            self._resources.callback(os.close, fd)
        self.ring = Ring(memory)
        self.scheduler = _native.HostScheduler(
            self.ring.atomic, provisioned.host, bells[0], bells[1:]
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._resources.close()

    def answers(self, requests: Sequence[ScriptedRequest]) -> list[list[int]]:
        """Submit all requests at once and run until all are over. Once for each object.

        Raises AssertionError where they do not end.
        """
        for slot, request in enumerate(requests):
            place = slot * self.context_length
            self.ring.prompts[0][place : place + len(request.prompt)] = request.prompt
            offsets = ("prompt_offset", "output_offset", "logprobs_offset", "stop_offset")
            for name, value in (request.record_fields() | dict.fromkeys(offsets, place)).items():
                self.ring.records[name][slot] = value
            self.ring.atomic.submit(slot, _native.ticket_after(0))
        for _ in range(_MOST_PASSES):
            self.scheduler.run_pass()
            if launched := self.scheduler.next_launch(0):
                launch = Launch(*launched)
                self.provisioned.step(launch)
                self.scheduler.complete(launch.phase)
            statuses = [unpack_status(self.ring.atomic.status(s)[2]) for s in range(len(requests))]
            if all(status[1] == SlotState.DECODE_COMPLETED for status in statuses):
                break
        else:
            raise AssertionError(f"the requests did not end: {statuses}")
        outputs = self.ring.outputs[0].reshape(SLOTS, -1)
        return [outputs[slot, : status[0]].tolist() for slot, status in enumerate(statuses)]
