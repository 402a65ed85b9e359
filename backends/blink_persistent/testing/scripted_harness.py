"""A ring, the scripted engine and a host scheduler, driven pass by pass or by real threads.

    with ScriptedHarness(ScriptedShape(max_rows=2)) as harness:
        harness.submit(slot=0, ticket=1, request=ScriptedRequest(prompt=(5, 6, 7), max_tokens=4))
        harness.settle()
        assert harness.output(0, 1) == (5, 9, 3, 8)

One harness belongs to one thread, but for its ring's words, which any thread may write.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Self

import numpy as np
import numpy.typing as npt

from blink_persistent import _native
from blink_persistent.ring import Condition, Ring, SlotState, create_ring_memory, unpack_status
from blink_persistent.testing.observed import Launch, Outcome, Status, TraceEvent, TraceKind
from blink_persistent.testing.scripted_request import ScriptedRequest
from blink_persistent.testing.scripted_shape import ScriptedShape


class ScriptedHarness:
    """Owns ring memory, engine and scheduler; `close` gives all of it back.

    `flight` is the launch that the scheduler has made and `finish_step` has not yet ended.
    """

    def __init__(self, shape: ScriptedShape, *, trace_capacity: int = 1 << 16) -> None:
        self.shape = shape
        self._resources = ExitStack()
        self.ring_fd, memory = create_ring_memory(shape.ring(), shape.epoch)
        self._resources.callback(os.close, self.ring_fd)
        self.ring = Ring(memory)
        self.doorbell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._resources.callback(os.close, self.doorbell)
        self.bells = [os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(shape.ranges)]
        for bell in self.bells:
            self._resources.callback(os.close, bell)
        self.engine = shape.host_engine()
        self.scripted = _native.ScriptedEngine(self.engine, shape.rule)
        self.scripted.poison_token = shape.poison_token
        self.scripted.tells_phases = shape.tells_phases
        self.scheduler = _native.HostScheduler(
            self.ring.atomic, self.engine, self.doorbell, self.bells, trace_capacity
        )
        self._resources.callback(self.scheduler.stop)
        self.flight: Launch | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the scheduler, if it runs as a thread, and close all descriptors."""
        self._resources.close()

    # What a frontend does.

    def write_record(self, slot: int, request: ScriptedRequest) -> None:
        """Write prompt, stop ids and record, the data that `submit` announces."""
        shape, part = self.shape, slot % self.shape.slots_per_range
        place, outputs = part * shape.context_length, part * shape.output_words
        range_ = slot // shape.slots_per_range
        prompt = np.asarray(request.prompt, np.int32)[: shape.context_length]
        self.ring.prompts[range_][place : place + len(prompt)] = prompt
        self.ring.aux[range_][place : place + len(request.stop)] = request.stop
        fields = request.record_fields() | {
            "prompt_offset": place,
            "output_offset": outputs,
            "logprobs_offset": outputs + shape.context_length,
            "stop_offset": place,
        }
        for name, value in (fields | dict(request.overrides)).items():
            self.ring.records[name][slot] = value

    def submit(self, slot: int, ticket: int, request: ScriptedRequest) -> None:
        """Write the record, then its ticket, then ring the scheduler."""
        self.write_record(slot, request)
        self.ring.atomic.submit(slot, ticket)
        self.ring_doorbell()

    def take_over(self, slot: int) -> int:
        """What the provisioner writes for a dead owner's slot; the ticket to wait for as EMPTY,
        or 0 where the owner never wrote one."""
        ticket: int = self.ring.atomic.submitted(slot)
        if ticket != 0:
            self.ring.atomic.cancel(slot, ticket)
            self.ring.atomic.release(slot, ticket)
            self.ring_doorbell()
        return ticket

    def ring_doorbell(self) -> None:
        """Wake the scheduler's thread."""
        os.eventfd_write(self.doorbell, 1)

    def status(self, slot: int) -> Status:
        """The slot's status, whoever's it is."""
        ticket, epoch, word = self.ring.atomic.status(slot)
        return Status(ticket, epoch, *unpack_status(word))

    def accepted(self, slot: int, ticket: int) -> Status | None:
        """The status if it is this ticket's, by the reader's rule; else None."""
        status = self.status(slot)
        return status if status.belongs_to(ticket, self.shape.epoch) else None

    def is_empty(self, slot: int, ticket: int) -> bool:
        """{ticket, EMPTY}: the request is over and the slot's record may be rewritten."""
        status = self.accepted(slot, ticket)
        return status is not None and status.state == SlotState.EMPTY

    def output(self, slot: int, ticket: int) -> tuple[int, ...]:
        """Tokens published so far under this ticket; none where the status is not its own."""
        status = self.accepted(slot, ticket)
        start = int(self.ring.records["output_offset"][slot])
        tokens = self.ring.outputs[slot // self.shape.slots_per_range]
        return tuple(tokens[start : start + (status.generated if status else 0)].tolist())

    def logprobs(self, slot: int, count: int) -> npt.NDArray[np.int32]:
        """int32 [count, words]: the raw log-probability entries of the first `count` tokens."""
        record = self.ring.records[slot]
        words = _native.logprob_words(int(record["logprobs"]))
        start = int(record["logprobs_offset"])
        arena: npt.NDArray[np.int32] = self.ring.outputs[slot // self.shape.slots_per_range]
        return arena[start : start + count * words].reshape(count, words)

    # What the scheduler's and the engine's threads do.

    def run_pass(self) -> Outcome:
        """One pass of the scheduler on this thread; takes over what it launched."""
        outcome = Outcome(self.scheduler.run_pass())
        if self.flight is None:
            launch = self.scheduler.next_launch(0)
            self.flight = None if launch is None else Launch(*launch)
        return outcome

    def finish_step(self, error: int = 0) -> None:
        """Run the launched graph to its end; with an error, end it without its work."""
        if self.flight is None:
            raise RuntimeError("no graph was launched")
        _, phase, *shape = self.flight
        if error == 0:
            self.scripted.step(phase, *shape)
        self.flight = None
        self.scheduler.complete(phase, error)

    def settle(self, limit: int = 100_000) -> int:
        """Pass and step until the scheduler has nothing to do; the number of passes.

        Raises RuntimeError past `limit` passes: the scheduler makes no progress.
        """
        for passes in range(1, limit + 1):
            if self.flight is not None:
                self.finish_step()
            outcome = self.run_pass()
            if outcome in (Outcome.IDLE, Outcome.PARK, Outcome.STOP, Outcome.FAILED):
                return passes
        raise RuntimeError(f"the scheduler did not settle within {limit} passes")

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Run the scheduler and the engine on threads of their own. Afterwards the scheduler is
        stopped for good."""
        engine = threading.Thread(target=self._serve_launches, name="engine")
        engine.start()
        self.scheduler.start()
        try:
            yield
        finally:
            self.scheduler.stop()
            engine.join()

    def _serve_launches(self) -> None:
        stopped = (Condition.STOPPED, Condition.FAILED)
        while True:
            launch = self.scheduler.next_launch(1000)
            if launch is not None:
                _, phase, *shape = launch
                self.scripted.step(phase, *shape)
                self.scheduler.complete(phase)
            elif self.scheduler.condition() in stopped:
                return

    def wait(self, range_: int, timeout_ms: int = 10_000) -> None:
        """Wait until the scheduler has news for a range. Raises TimeoutError."""
        poll = select.poll()
        poll.register(self.bells[range_], select.POLLIN)
        if not poll.poll(timeout_ms):
            raise TimeoutError(f"no news for range {range_} within {timeout_ms} ms")
        os.eventfd_read(self.bells[range_])

    def trace(self) -> list[TraceEvent]:
        """What the scheduler did since the last call."""
        return [TraceEvent(TraceKind(kind), *rest) for kind, *rest in self.scheduler.drain_trace()]

    def counters(self, *names: str) -> Sequence[int]:
        """Header fields by name."""
        return [self.ring.field(name) for name in names]
