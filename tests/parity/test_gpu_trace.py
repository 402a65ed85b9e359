"""A script of events recorded on the host's port gives the same actions on the other two ports."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from blink_persistent.gpu.driver import cuda_driver
from blink_persistent.graph_grid import DECODE, MIXED, PREFILL
from blink_persistent.ring import SlotState
from blink_persistent.testing.device_harness import DeviceHarness
from blink_persistent.testing.host_driven_harness import HostDrivenHarness
from blink_persistent.testing.observed import Outcome, TraceEvent, TraceKind
from blink_persistent.testing.scripted_harness import ScriptedHarness
from blink_persistent.testing.scripted_request import ScriptedRequest
from blink_persistent.testing.scripted_shape import ScriptedShape
from blink_server.errors import Unavailable

pytestmark = pytest.mark.gpu

PAGED = ScriptedShape(max_rows=6, max_sequences=3, block_count=40, eos_every=40)
SHAPES = {
    "paged": PAGED,
    "deterministic": replace(PAGED, deterministic=True),
    "rows": ScriptedShape(max_rows=4, max_sequences=1, rows_movable=False, eos_every=40),
    "mixed": ScriptedShape(
        max_rows=6, max_sequences=3, block_count=40, eos_every=40,
        prefill_chunk=20, max_mixed_tokens=16, max_mixed_rows=4,
    ),
}  # fmt: skip
TRACE_CAPACITY = 1 << 16


class Event(NamedTuple):
    """What a frontend does; `request` only to submit."""

    kind: str
    slot: int
    request: ScriptedRequest | None = None


class Recording(NamedTuple):
    """Events before each step, and what the scheduler did."""

    script: list[list[Event]]
    trace: list[TraceEvent]
    outputs: dict[tuple[int, int], tuple[int, ...]]


def random_request(rng: random.Random, shape: ScriptedShape) -> ScriptedRequest:
    return ScriptedRequest(
        prompt=tuple(rng.randrange(3, shape.vocabulary_size) for _ in range(rng.randrange(1, 70))),
        max_tokens=rng.randrange(1, 60),
        min_tokens=rng.randrange(4),
        priority=rng.randrange(2),
    )


def pass_until_quiet(harness: ScriptedHarness) -> None:
    """Let the scheduler see what was written and do all that follows, up to a running step."""
    while harness.run_pass() not in (Outcome.BUSY, Outcome.IDLE):
        pass


def record_on_host(shape: ScriptedShape, seed: int, steps: int, slots: int = 24) -> Recording:
    """Random events between the steps of the host's scheduler, each seen before the next."""
    rng = random.Random(seed)
    tickets = [0] * slots
    script: list[list[Event]] = []
    outputs: dict[tuple[int, int], tuple[int, ...]] = {}

    def choose(harness: ScriptedHarness, slot: int, submitting: bool) -> Event | None:
        if tickets[slot] == 0 or harness.is_empty(slot, tickets[slot]):
            wanted = submitting and rng.random() < 0.1
            return Event("submit", slot, random_request(rng, shape)) if wanted else None
        if harness.status(slot).state == SlotState.DECODE_COMPLETED:
            outputs[slot, tickets[slot]] = harness.output(slot, tickets[slot])
            return Event("release", slot)
        return Event("cancel", slot) if rng.random() < 0.01 else None

    with ScriptedHarness(shape, trace_capacity=TRACE_CAPACITY) as harness:
        while True:
            script.append([])
            for slot in range(slots):
                event = choose(harness, slot, len(script) < steps)
                if event is None:
                    continue
                script[-1].append(event)
                if event.request is not None:
                    tickets[slot] += 1
                    harness.submit(slot, tickets[slot], event.request)
                elif event.kind == "cancel":
                    harness.ring.atomic.cancel(slot, tickets[slot])
                else:
                    harness.ring.atomic.release(slot, tickets[slot])
                pass_until_quiet(harness)
            if harness.flight is not None:
                harness.finish_step()
                pass_until_quiet(harness)
            elif len(script) >= steps and not script[-1]:
                return Recording(script, harness.trace(), outputs)


def replay_on_gpu(harness: DeviceHarness, recording: Recording) -> list[TraceEvent]:
    """The trace of a scheduler of graphs on the GPU; outputs are compared as slots are released."""
    with harness:
        harness.scheduler.launch()
        for events in recording.script:
            for event in events:
                if event.request is not None:
                    harness.submit({event.slot: event.request})
                elif event.kind == "cancel":
                    harness.cancel([event.slot])
                else:
                    ticket = int(harness.ring.mirror.words["submit"][event.slot])
                    assert harness.output(event.slot) == recording.outputs[event.slot, ticket]
                    harness.release([event.slot])
                harness.wait_for_passes()
            harness.finish_step()
        harness.scheduler.stop()
        return harness.trace()


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("seed", [1, 2])
def test_all_three_ports_take_the_same_actions(shape: ScriptedShape, seed: int) -> None:
    recording = record_on_host(shape, seed, steps=250)
    kinds = {event.kind for event in recording.trace}
    wanted = set(TraceKind)
    assert kinds == (wanted if shape.rows_movable else wanted - {TraceKind.MOVE, TraceKind.PREEMPT})
    keys = shape.grid.keys
    phases = {keys[event.a].phase for event in recording.trace if event.kind == TraceKind.LAUNCH}
    assert phases == {DECODE, PREFILL, *((MIXED,) if shape.max_mixed_tokens else ())}
    try:
        cuda_driver()
    except Unavailable as missing:
        pytest.skip(f"the host's recording is complete, but there is {missing}")
    options: dict[str, Any] = {"gated": True, "trace_capacity": TRACE_CAPACITY}
    assert replay_on_gpu(DeviceHarness(shape, **options), recording) == recording.trace
    driven = HostDrivenHarness(shape, polls=True, **options)
    assert replay_on_gpu(driven, recording) == recording.trace
