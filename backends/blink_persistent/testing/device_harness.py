"""A ring, the scripted engine and the persistent scheduler on a GPU, with a frontend's view of it.

    with DeviceHarness(ScriptedShape(max_rows=2)) as harness:
        harness.submit({0: ScriptedRequest(prompt=(5, 6, 7), max_tokens=4)})
        harness.scheduler.launch()
        harness.wait_for_ends([0])
        assert harness.output(0) == (5, 9, 3, 8)

One thread. Waits raise TimeoutError.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, Self

import numpy.typing as npt

from blink_persistent.gpu.device_ring import DeviceRing
from blink_persistent.gpu.device_scheduler import DeviceScheduler
from blink_persistent.gpu.driver import Gpu
from blink_persistent.gpu.engine_buffers import EngineLimits
from blink_persistent.gpu.scripted import DeviceScriptedEngine
from blink_persistent.gpu.structs import EngineTables
from blink_persistent.ring import Condition, Ring, SlotState, unpack_status
from blink_persistent.testing.observed import Status, TraceEvent, TraceKind
from blink_persistent.testing.scripted_request import ScriptedRequest
from blink_persistent.testing.scripted_shape import ScriptedShape

WHOLE_TURNS = 8  # heartbeats after which all is done that follows from what was pushed before


class MirroredRing(Protocol):
    """A ring that a frontend reads and writes through a copy of it, as `DeviceRing` says."""

    @property
    def mirror(self) -> Ring: ...
    def push(self, view: npt.NDArray[Any]) -> None: ...
    def pull(self, view: npt.NDArray[Any]) -> None: ...
    def flush(self) -> None: ...
    def field(self, name: str) -> int: ...


class RunningScheduler(Protocol):
    """What `DeviceScheduler` and `HostDrivenScheduler` have in common."""

    def launch(self) -> None: ...
    def park(self, timeout_s: float = ...) -> None: ...
    def stop(self) -> None: ...
    def close_ring(self) -> None: ...
    def is_idle(self) -> bool: ...
    def condition(self) -> Condition: ...
    def error(self) -> str | None: ...
    def drain_trace(self) -> list[tuple[int, int, int, int]]: ...


class LaunchableEngine(Protocol):
    """What a scheduler is made over."""

    @property
    def tables(self) -> EngineTables: ...
    @property
    def graphs(self) -> Sequence[Any]: ...


class DeviceHarness:
    """Owns the GPU's context; `close` stops the scheduler and gives all of it back.

    With `gated`, `finish_step` lets one step end at a time; else steps take `step_ns` at least.
    """

    def __init__(
        self,
        shape: ScriptedShape,
        *,
        gated: bool = False,
        step_ns: int = 0,
        trace_capacity: int = 0,
        profile_capacity: int = 0,
        times_capacity: int = 0,
        filler_kernels: int = 0,
    ) -> None:
        self.shape = shape
        self.gpu = Gpu()
        limits = EngineLimits(
            context_length=shape.context_length,
            vocabulary_size=shape.vocabulary_size,
            block_size=shape.block_size if shape.rows_movable else shape.context_length,
            block_count=shape.block_count if shape.rows_movable else 0,
            eos_token_ids=(shape.eos_token_id,),
            rows_movable=shape.rows_movable,
            token_granularity=shape.token_granularity,
            deterministic=shape.deterministic,
            prefill_chunk=shape.prefill_chunk,
        )
        self.engine = DeviceScriptedEngine(
            self.gpu,
            shape.grid,
            limits,
            eos_every=shape.eos_every,
            poison_token=shape.poison_token,
            step_ns=step_ns,
            gated=gated,
            times_capacity=times_capacity,
            filler_kernels=filler_kernels,
        )
        self.ring: MirroredRing
        self.scheduler: RunningScheduler
        self._make_scheduler(self.engine, trace_capacity, profile_capacity)

    def _make_scheduler(
        self, engine: LaunchableEngine, trace_capacity: int, profile_capacity: int
    ) -> None:
        """Sets `ring` and `scheduler`."""
        ring = DeviceRing(self.gpu, self.shape.ring(), self.shape.epoch)
        self.ring = ring
        self.scheduler = DeviceScheduler(
            self.gpu,
            ring,
            engine.tables,
            engine.graphs,
            trace_capacity=trace_capacity,
            profile_capacity=profile_capacity,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the scheduler and free everything. Steps that wait at the gate are let go."""
        self.engine.allow(0xFFFFFFFF)
        try:
            self.scheduler.stop()
        finally:
            self.gpu.close()

    # What a frontend does.

    def submit(self, requests: Mapping[int, ScriptedRequest]) -> None:
        """Write the records of these slots, then their next tickets, all in one copy."""
        mirror = self.ring.mirror
        for slot, request in requests.items():
            self._write_record(slot, request)
        self.ring.push(mirror.prompts)
        self.ring.push(mirror.aux)
        self.ring.push(mirror.records)
        for slot in requests:
            mirror.words["submit"][slot] += 1
        self._push_words()

    def cancel(self, slots: Iterable[int]) -> None:
        """Cancel the slots' present tickets."""
        for slot in slots:
            self.ring.mirror.words["cancel"][slot] = self.ring.mirror.words["submit"][slot]
        self._push_words()

    def release(self, slots: Iterable[int]) -> None:
        """Release the slots' present tickets."""
        for slot in slots:
            self.ring.mirror.words["release"][slot] = self.ring.mirror.words["submit"][slot]
        self._push_words()

    def statuses(self) -> list[Status]:
        """Every slot's status now."""
        self.ring.pull(self.ring.mirror.status)
        return [
            Status(ticket, epoch, *unpack_status(word))
            for ticket, epoch, word in self.ring.mirror.status.tolist()
        ]

    def output(self, slot: int) -> tuple[int, ...]:
        """Tokens published so far for the slot's request."""
        status = self.statuses()[slot]
        start = int(self.ring.mirror.records["output_offset"][slot])
        tokens = self.ring.mirror.outputs[slot // self.shape.slots_per_range]
        tokens = tokens[start : start + status.generated]
        if status.generated:
            self.ring.pull(tokens)
        return tuple(tokens.tolist())

    # Waiting.

    def wait_until(self, reached: Callable[[], bool], what: str, timeout_s: float = 30.0) -> None:
        """Look again and again until it is so; the scheduler must not die meanwhile."""
        deadline = time.monotonic() + timeout_s
        while not reached():
            self.scheduler.is_idle()
            if time.monotonic() > deadline:
                raise TimeoutError(f"not reached in {timeout_s} s: {what}")

    def wait_for_ends(self, slots: Iterable[int], timeout_s: float = 30.0) -> None:
        """Wait until these slots' requests have ended."""
        wanted = list(slots)

        def ended() -> bool:
            statuses = self.statuses()
            return all(statuses[slot].state == SlotState.DECODE_COMPLETED for slot in wanted)

        self.wait_until(ended, f"{len(wanted)} requests end", timeout_s)

    def wait_for_empty(self, slots: Iterable[int], timeout_s: float = 30.0) -> None:
        """Wait until these slots may be used again."""
        wanted = list(slots)

        def empty() -> bool:
            statuses = self.statuses()
            return all(statuses[slot].state == SlotState.EMPTY for slot in wanted)

        self.wait_until(empty, f"{len(wanted)} slots are empty", timeout_s)

    def wait_for_passes(self) -> None:
        """Wait until what was pushed before has been seen, and what follows from it was done.

        The heartbeat comes once for every turn of the ring.
        """
        last, seen = self.ring.field("heartbeat_ns"), 0

        def passed() -> bool:
            nonlocal last, seen
            self.ring.flush()  # wakes a scheduler that sleeps
            now = self.ring.field("heartbeat_ns")
            seen, last = seen + (now != last), now
            return seen >= WHOLE_TURNS

        self.wait_until(passed, "the scheduler's passes")

    def finish_step(self) -> bool:
        """Let the running step end, and wait until the next has begun; False where none runs."""
        self.ring.pull(self.ring.mirror.header)
        field = self.ring.mirror.field
        steps = field("steps")
        if steps == self.ring.mirror.launched():
            return False
        self.engine.allow(steps + 1)
        self.wait_until(lambda: self.ring.field("steps") > steps, "a step's end")
        self.wait_for_passes()
        return True

    def trace(self) -> list[TraceEvent]:
        """What the scheduler did since the last call; only while it is parked or stopped."""
        return [TraceEvent(TraceKind(kind), *rest) for kind, *rest in self.scheduler.drain_trace()]

    def _push_words(self) -> None:
        self.ring.push(self.ring.mirror.words)
        self.ring.flush()

    def _write_record(self, slot: int, request: ScriptedRequest) -> None:
        mirror, shape = self.ring.mirror, self.shape
        part, range_ = slot % shape.slots_per_range, slot // shape.slots_per_range
        place, outputs = part * shape.context_length, part * shape.output_words
        mirror.prompts[range_][place : place + len(request.prompt)] = request.prompt
        mirror.aux[range_][place : place + len(request.stop)] = request.stop
        fields = request.record_fields() | {
            "prompt_offset": place,
            "output_offset": outputs,
            "logprobs_offset": outputs + shape.context_length,
            "stop_offset": place,
        }
        for name, value in (fields | dict(request.overrides)).items():
            mirror.records[name][slot] = value
