"""Each thing a record must not say ends its request at once, and harms no other."""

from __future__ import annotations

import pytest

from blink_persistent.ring import Reason, SlotState
from blink_persistent.testing.observed import TraceKind
from blink_persistent.testing.random_requests import INVALID
from blink_persistent.testing.scripted_harness import ScriptedHarness
from blink_persistent.testing.scripted_request import ScriptedRequest
from blink_persistent.testing.scripted_shape import ScriptedShape

GOOD = ScriptedRequest((5, 6, 7), max_tokens=4)


@pytest.mark.parametrize("overrides", INVALID, ids=str)
def test_a_record_out_of_bounds_is_refused(overrides: dict[str, int | float]) -> None:
    with ScriptedHarness(ScriptedShape(ranges=2)) as harness:
        harness.submit(255, 1, ScriptedRequest((5, 6, 7), overrides=overrides))
        harness.submit(256, 1, GOOD)
        harness.settle()
        status = harness.accepted(255, 1)
        assert status is not None
        assert (status.generated, status.state) == (0, SlotState.DECODE_COMPLETED)
        assert status.reason == Reason.INVALID_RECORD
        assert harness.output(256, 1) == GOOD.answer(harness.shape).tokens


@pytest.mark.parametrize(
    "overrides",
    [
        {"top_k": -(1 << 31), "min_p": -1.0, "top_p": 2.0},
        {"temperature": 3e38, "seed": (1 << 64) - 1},
        {"min_tokens": 0xFFFFFFFF},
        {"repetition_penalty": 1e-30, "presence_penalty": -3e38},
    ],
    ids=str,
)
def test_what_is_odd_but_harmless_is_served(overrides: dict[str, int | float]) -> None:
    with ScriptedHarness(ScriptedShape()) as harness:
        harness.submit(0, 1, ScriptedRequest((5, 6, 7), max_tokens=4, overrides=overrides))
        harness.settle()
        assert harness.output(0, 1) == GOOD.answer(harness.shape).tokens


@pytest.mark.parametrize("at", [0, 1, 39, 40, 79])
@pytest.mark.parametrize("token", [-1, 101, 1 << 30])
def test_a_prompt_token_outside_the_vocabulary_is_refused(at: int, token: int) -> None:
    """It is found when its chunk is prefilled; what was computed before is given back."""
    prompt = [5] * 80
    prompt[at] = token
    with ScriptedHarness(ScriptedShape()) as harness:
        harness.submit(0, 1, ScriptedRequest(tuple(prompt)))
        harness.submit(1, 1, GOOD)
        harness.settle()
        status = harness.accepted(0, 1)
        assert status is not None
        assert (status.generated, status.reason) == (0, Reason.INVALID_RECORD)
        assert harness.output(1, 1) == GOOD.answer(harness.shape).tokens
        assert harness.counters("rows_used", "blocks_used") == [0, 0]


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("token", [-1, 101])
def test_a_generated_token_that_somebody_overwrote_is_refused(
    token: int, deterministic: bool
) -> None:
    """A paused request's tokens are read again: by decode steps, or by a prefill."""
    shape = ScriptedShape(block_count=32, deterministic=deterministic)
    requests = [ScriptedRequest(tuple(range(3, 13 + i)), max_tokens=45) for i in range(4)]
    with ScriptedHarness(shape) as harness:
        for slot, request in enumerate(requests):
            harness.submit(slot, 1, request)
        paused: list[int] = []
        while not paused:
            if harness.flight is not None:
                harness.finish_step()
            harness.run_pass()
            paused = [event.a for event in harness.trace() if event.kind == TraceKind.PREEMPT]
        bad = paused[0]
        before = harness.output(bad, 1)
        harness.ring.outputs[0][harness.ring.records["output_offset"][bad]] = token
        harness.settle()
        status = harness.accepted(bad, 1)
        assert status is not None
        assert (status.generated, status.reason) == (len(before), Reason.INVALID_RECORD)
        for slot in {*range(4)} - {bad}:
            assert harness.output(slot, 1) == requests[slot].answer(shape).tokens
        assert harness.counters("rows_used", "blocks_used") == [0, 0]
