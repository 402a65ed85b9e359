"""The same graphs driven by a host thread give every request the answer of the plain rule."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from blink_persistent import _native
from blink_persistent.gpu.driver import CudaError, Gpu
from blink_persistent.ring import Condition, Reason
from blink_persistent.testing.device_harness import LaunchableEngine
from blink_persistent.testing.host_driven_harness import HostDrivenHarness
from blink_persistent.testing.scripted_request import ScriptedRequest
from blink_persistent.testing.scripted_shape import ScriptedShape

pytestmark = pytest.mark.gpu

CROWDED = ScriptedShape(
    max_rows=16, max_sequences=4, max_prefill_tokens=64, context_length=128, block_count=100,
    eos_every=60,
)  # fmt: skip
SLABS = ScriptedShape(
    rows_movable=False, max_rows=16, max_sequences=1, max_prefill_tokens=64, context_length=128,
    eos_every=60,
)  # fmt: skip
MIXED = replace(CROWDED, prefill_chunk=24, max_mixed_tokens=32, max_mixed_rows=8)
SHAPES = {
    "paged": CROWDED,
    "slabs": SLABS,
    "mixed": MIXED,
    "deterministic": replace(CROWDED, deterministic=True),
}
WAITS = {"synchronizes": False, "polls": True}


def random_requests(shape: ScriptedShape, count: int) -> dict[int, ScriptedRequest]:
    """Requests for the first slots, of all lengths and two priorities."""
    rng = random.Random(1)
    half = shape.context_length // 2

    def prompt() -> tuple[int, ...]:
        return tuple(rng.randrange(3, shape.vocabulary_size) for _ in range(rng.randrange(1, half)))

    return {
        slot: ScriptedRequest(prompt(), max_tokens=rng.randrange(1, half), priority=slot % 2)
        for slot in range(count)
    }


def check_answers(harness: HostDrivenHarness, requests: dict[int, ScriptedRequest]) -> None:
    for slot, request in requests.items():
        status, expected = harness.statuses()[slot], request.answer(harness.shape)
        assert (harness.output(slot), status.reason) == (expected.tokens, expected.reason), slot


@pytest.mark.parametrize("polls", WAITS.values(), ids=WAITS.keys())
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_crowded_requests_get_the_rules_answers(shape: ScriptedShape, polls: bool) -> None:
    requests = random_requests(shape, 64)
    with HostDrivenHarness(shape, polls=polls) as harness:
        harness.scheduler.launch()
        harness.submit(requests)
        harness.wait_for_ends(requests)
        check_answers(harness, requests)
        assert (harness.ring.field("preemptions") > 0) == shape.rows_movable
        assert (harness.ring.field("mixed_launches") > 0) == (shape is MIXED)
        assert harness.ring.field("steps") == harness.engine.steps()
        harness.release(requests)
        harness.wait_for_empty(requests)


def test_log_probabilities_come_back_when_asked_for() -> None:
    requests = {0: ScriptedRequest((5, 6, 7), max_tokens=6, logprobs=3)}
    with HostDrivenHarness(ScriptedShape()) as harness:
        harness.scheduler.launch()
        harness.submit(requests)
        harness.wait_for_ends(requests)
        tokens = np.array(harness.output(0), np.float32)
        words = _native.logprob_words(3)
        at = int(harness.ring.mirror.records["logprobs_offset"][0])
        entries = harness.ring.mirror.outputs[0][at : at + len(tokens) * words]
        harness.ring.pull(entries)
        shown = entries.view(np.float32).reshape(-1, words)
        assert (shown[:, 0] == -tokens).all()
        assert (shown[:, 4] == -tokens - 1).all()  # after chosen, two ids, and the best


def test_park_holds_between_two_steps() -> None:
    request = ScriptedRequest((3, 5), max_tokens=90, ignore_eos=True)
    requests = dict.fromkeys(range(8), request)
    with HostDrivenHarness(CROWDED, step_ns=50_000) as harness:
        harness.submit(requests)
        harness.scheduler.launch()
        for parks in range(1, 6):
            harness.wait_until(lambda: harness.ring.field("steps") > 10 * parks, "steps")  # noqa: B023
            harness.scheduler.park()
            assert harness.scheduler.condition() == Condition.PARKED
            steps = harness.ring.field("steps")
            harness.gpu.call("cuMemFree", harness.gpu.call("cuMemAlloc", 1 << 26))
            assert harness.engine.steps() == steps == harness.ring.field("steps")
            harness.scheduler.launch()
        harness.wait_for_ends(requests)
        check_answers(harness, requests)
        assert harness.ring.field("parks") == 5


def test_a_graph_that_cannot_be_launched_fails_by_name() -> None:
    class WithoutGraphs(HostDrivenHarness):
        def _make_scheduler(self, engine: LaunchableEngine, *capacities: int) -> None:
            without = SimpleNamespace(tables=engine.tables, graphs=[0] * len(engine.graphs))
            super()._make_scheduler(without, *capacities)

    with WithoutGraphs(ScriptedShape()) as harness:
        requests = {slot: ScriptedRequest((5, 6)) for slot in (0, 1)}
        harness.submit(requests)
        harness.scheduler.launch()
        with pytest.raises(CudaError, match=r"CUDA_ERROR_INVALID_(VALUE|HANDLE)"):
            harness.wait_until(harness.scheduler.is_idle, "the scheduler gives up")
        assert {harness.statuses()[slot].reason for slot in (0, 1)} == {Reason.ENGINE_ERROR}


def test_start_and_close_leak_nothing() -> None:
    requests = random_requests(CROWDED, 4)
    free = []
    for _ in range(4):
        with HostDrivenHarness(CROWDED) as harness:
            harness.submit(requests)
            harness.scheduler.launch()
            harness.wait_for_ends(requests)
        with Gpu() as gpu:
            free.append(gpu.free_bytes())
    assert free[1:] == free[:1] * 3
