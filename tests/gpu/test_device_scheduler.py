"""The persistent scheduler on a GPU gives every request the answer of the plain rule."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from blink_persistent import _native
from blink_persistent.gpu.device_scheduler import DeviceScheduler
from blink_persistent.gpu.driver import Gpu
from blink_persistent.ring import Condition, Reason, SlotState
from blink_persistent.testing.device_harness import DeviceHarness
from blink_persistent.testing.scripted_request import ScriptedRequest
from blink_persistent.testing.scripted_shape import ScriptedShape

pytestmark = pytest.mark.gpu

CROWDED = ScriptedShape(
    max_rows=16,
    max_sequences=4,
    max_prefill_tokens=64,
    context_length=128,
    block_count=100,
    eos_every=60,
)
SLABS = ScriptedShape(
    rows_movable=False,
    max_rows=16,
    max_sequences=1,
    max_prefill_tokens=64,
    context_length=128,
    eos_every=60,
)
MIXED = replace(CROWDED, prefill_chunk=24, max_mixed_tokens=32, max_mixed_rows=8)
MANY_ROWS = replace(
    CROWDED,
    slots_per_range=512,
    max_rows=300,
    max_sequences=128,
    max_prefill_tokens=4096,
    block_count=4000,
)
"""More rows than have their slots in shared memory (`kNearRows`)."""
SHAPES = {
    "paged": CROWDED,
    "slabs": SLABS,
    "mixed": MIXED,
    "deterministic": replace(CROWDED, deterministic=True),
    "many rows": MANY_ROWS,
}
STREAMS = ScriptedShape(
    max_rows=64, max_sequences=8, max_prefill_tokens=512, context_length=2048, block_count=9000,
    block_size=16,
)  # fmt: skip


def random_requests(shape: ScriptedShape, count: int, seed: int) -> dict[int, ScriptedRequest]:
    """Requests for the first slots, of all lengths."""
    rng = random.Random(seed)
    return {
        slot: ScriptedRequest(
            prompt=tuple(
                rng.randrange(3, shape.vocabulary_size)
                for _ in range(rng.randrange(1, shape.context_length // 2))
            ),
            max_tokens=rng.randrange(1, shape.context_length // 2),
            min_tokens=rng.randrange(3),
            priority=rng.randrange(2),
        )
        for slot in range(count)
    }


def long_requests(count: int, tokens: int) -> dict[int, ScriptedRequest]:
    """Requests that generate `tokens` tokens each."""
    return {
        slot: ScriptedRequest(prompt=(3 + slot % 90, 5, 7), max_tokens=tokens, ignore_eos=True)
        for slot in range(count)
    }


def check_answers(harness: DeviceHarness, requests: dict[int, ScriptedRequest]) -> None:
    for slot, request in requests.items():
        status, expected = harness.statuses()[slot], request.answer(harness.shape)
        assert (harness.output(slot), status.reason) == (expected.tokens, expected.reason), slot


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_crowded_requests_get_the_rules_answers(shape: ScriptedShape) -> None:
    requests = random_requests(shape, shape.max_rows + 100, seed=1)
    with DeviceHarness(shape) as harness:
        harness.scheduler.launch()
        harness.submit(requests)
        harness.wait_for_ends(requests)
        check_answers(harness, requests)
        assert (harness.ring.field("preemptions") > 0) == (shape not in (SLABS, MANY_ROWS))
        assert (harness.ring.field("mixed_launches") > 0) == (shape is MIXED)
        assert harness.ring.field("rows_used") == harness.ring.field("blocks_used") == 0
        harness.release(requests)
        harness.wait_for_empty(requests)


def test_the_window_is_renewed_over_thousands_of_steps() -> None:
    requests = long_requests(8, 1900)
    with DeviceHarness(STREAMS) as harness:
        harness.submit(requests)
        harness.scheduler.launch()
        for turn in range(4):
            harness.wait_for_ends(requests)
            check_answers(harness, requests)
            harness.release(requests)
            harness.wait_for_empty(requests)
            if turn < 3:
                harness.submit(requests)
        harness.scheduler.park()
        field = harness.ring.field
        harness.ring.pull(harness.ring.mirror.header)
        launches = harness.ring.mirror.launched()
        assert launches == field("steps") == 4 * 1900
        assert field("tail_launches") >= (launches - 1) // _native.LAUNCH_WINDOW
        assert harness.scheduler.error() is None


def test_a_cancelled_request_stops_where_it_is() -> None:
    requests = long_requests(12, 60)
    with DeviceHarness(ScriptedShape(max_rows=8), gated=True) as harness:
        harness.submit(requests)
        harness.scheduler.launch()
        harness.wait_for_passes()
        for _ in range(12):
            assert harness.finish_step()
        harness.cancel([1, 4, 11])  # two that run, one that waits
        harness.wait_for_passes()
        assert harness.statuses()[11].reason == Reason.CANCELLED
        assert harness.statuses()[1].state == SlotState.DECODE_PROCESSING
        harness.finish_step()
        for slot in (1, 4):
            status = harness.statuses()[slot]
            assert (status.state, status.reason) == (SlotState.DECODE_COMPLETED, Reason.CANCELLED)
            answer = requests[slot].answer(harness.shape).tokens
            assert harness.output(slot) == answer[: status.generated]
        harness.engine.allow(0xFFFFFFFF)
        harness.wait_for_ends(requests)
        check_answers(harness, {s: r for s, r in requests.items() if s not in (1, 4, 11)})


def test_park_keeps_everything_and_lets_the_host_work() -> None:
    requests = long_requests(64, 1000)
    with DeviceHarness(STREAMS, step_ns=50_000) as harness:
        harness.submit(requests)
        harness.scheduler.launch()
        harness.wait_until(lambda: harness.ring.field("steps") > 100, "a hundred steps")
        for _ in range(5):
            harness.scheduler.park()
            assert harness.scheduler.condition() == Condition.PARKED
            steps = harness.ring.field("steps")
            harness.gpu.call("cuMemFree", harness.gpu.call("cuMemAlloc", 1 << 26))
            assert harness.engine.steps() == steps == harness.ring.field("steps")
            harness.scheduler.launch()
            harness.wait_until(lambda: harness.ring.field("steps") > steps + 10, "more steps")  # noqa: B023
        harness.wait_for_ends(requests)
        check_answers(harness, requests)
        assert harness.ring.field("parks") == 5


def test_stop_and_restart_leak_nothing() -> None:
    requests = long_requests(4, 50)
    free = []
    for _ in range(4):
        with DeviceHarness(CROWDED) as harness:
            harness.submit(requests)
            harness.scheduler.launch()
            harness.wait_for_ends(requests)
            harness.scheduler.stop()
            assert harness.scheduler.condition() == Condition.STOPPED
            harness.release(requests)
            harness.scheduler.launch()
            harness.wait_until(
                lambda: harness.statuses()[0].state == SlotState.EMPTY,
                "the restarted scheduler sees the release",
            )
        with Gpu() as gpu:
            free.append(gpu.free_bytes())
    assert free[1:] == free[:1] * 3


def test_a_closed_ring_refuses_and_finishes() -> None:
    running, late = long_requests(2, 80), {7: ScriptedRequest(prompt=(9, 9))}
    with DeviceHarness(ScriptedShape(), gated=True) as harness:
        harness.submit(running)
        harness.scheduler.launch()
        harness.wait_for_passes()
        harness.scheduler.close_ring()
        harness.wait_until(lambda: harness.ring.field("accepting") == 0, "the ring is closed")
        harness.submit(late)
        harness.engine.allow(0xFFFFFFFF)
        harness.wait_for_ends([*running, *late])
        check_answers(harness, running)
        assert harness.statuses()[7].reason == Reason.CLOSED
        assert harness.output(7) == ()


def test_a_graph_that_cannot_be_launched_fails_by_name() -> None:
    with DeviceHarness(ScriptedShape()) as harness:
        no_graphs = np.zeros(len(harness.engine.graphs), np.uint64)
        assert isinstance(harness.scheduler, DeviceScheduler)
        harness.gpu.put(harness.scheduler._parameters.graphs, no_graphs)
        harness.submit(long_requests(2, 10))
        harness.scheduler.launch()
        harness.wait_until(harness.scheduler.is_idle, "the scheduler gives up")
        assert harness.scheduler.condition() == Condition.FAILED
        assert harness.scheduler.error() == "CUDA_ERROR_INVALID_VALUE"
        assert harness.ring.field("launch_retries") > 0
        for slot in (0, 1):
            status = harness.statuses()[slot]
            assert (status.generated, status.reason) == (0, Reason.ENGINE_ERROR)
