"""A hung scheduler is told from a busy and from an idle one."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from blink_persistent import _native
from blink_persistent.graph_grid import DECODE, MIXED, PREFILL, GraphGrid, GraphKey
from blink_persistent.ring import Ring
from blink_persistent.stall import HeartbeatClock, StallWatch, StepLimits, stalled

GRID = GraphGrid((GraphKey(DECODE, 8, 8), GraphKey(PREFILL, 1, 256), GraphKey(MIXED, 2, 120, 8)))
LIMITS = StepLimits(GRID, seconds=2.0)
SECOND = 1_000_000_000
NOW = 1000 * SECOND


@pytest.fixture
def ring() -> Ring:
    shape = _native.RingShape(
        ranges=1, slots_per_range=256, prompt_words=1, output_words=1, aux_words=1
    )
    memory = np.zeros(shape.total_bytes, np.uint8)
    _native.create_ring(memory, shape, 1)
    ring = Ring(memory)
    write(ring, heartbeat_ns=NOW)
    return ring


def write(ring: Ring, **fields: int) -> None:
    for name, value in fields.items():
        ring.header[name][0] = value


def test_an_idle_scheduler_is_not_hung(ring: Ring) -> None:
    write(
        ring, decode_launches=6, prefill_launches=3, mixed_launches=1, steps=10, step_started_ns=1
    )
    assert stalled(ring, LIMITS, NOW) == ""


@pytest.mark.parametrize(
    ("graph", "seconds", "said"),
    [
        (0, 1.9, ""),
        (0, 2.5, "the decode step of 8 rows has run for 2.5 s (its limit is 2.0 s)"),
        (1, 7.9, ""),  # 256 tokens: four times the limit of 64
        (1, 9, "the prefill step of 1 sequences and 256 tokens has run for 9.0 s"),
        (2, 3.9, ""),
        (2, 5, "the mixed step of 8 rows, 2 sequences and 120 tokens has run for 5.0 s"),
    ],
)
def test_a_step_is_measured_against_its_key(
    ring: Ring, graph: int, seconds: float, said: str
) -> None:
    started = NOW - int(seconds * SECOND)
    launches = "mixed_launches" if GRID.keys[graph].phase == MIXED else "decode_launches"
    write(ring, **{launches: 11}, steps=10, running_graph=graph, step_started_ns=started)
    reason = stalled(ring, LIMITS, NOW)
    assert said in reason
    assert bool(reason) == bool(said)


def test_a_silent_scheduler_is_hung(ring: Ring) -> None:
    assert "the scheduler is silent since 3.0 s" in stalled(ring, LIMITS, NOW + 3 * SECOND)


def test_the_watch_tells_once(ring: Ring) -> None:
    told: list[str] = []
    heard = threading.Event()

    def hear(reason: str) -> Any:
        told.append(reason)
        heard.set()

    write(ring, heartbeat_ns=1)
    watch = StallWatch(ring, StepLimits(GRID, seconds=0.01), hear)
    watch.start()
    assert heard.wait(30)
    watch.close()
    assert len(told) == 1


def test_anothers_clock_goes_on_from_its_last_heartbeat() -> None:
    clock = HeartbeatClock()
    assert clock.now_ns(5000, host_ns=70) == 5000
    assert clock.now_ns(5000, host_ns=100) == 5030  # silent for 30
    assert clock.now_ns(5100, host_ns=110) == 5100
    clock.forget()  # it stood still on purpose
    assert clock.now_ns(5100, host_ns=9000) == 5100
    assert clock.now_ns(5100, host_ns=9010) == 5110


def test_silence_and_steps_are_measured_on_the_schedulers_clock(ring: Ring) -> None:
    clock, far = HeartbeatClock(), 1_700_000_000 * SECOND  # unlike CLOCK_MONOTONIC's
    write(ring, heartbeat_ns=far, step_started_ns=far - SECOND, decode_launches=1, steps=0)

    def found(host_ns: int) -> str:
        return stalled(ring, LIMITS, clock.now_ns(ring.field("heartbeat_ns"), host_ns))

    assert found(5 * SECOND) == ""
    assert "the decode step of 8 rows has run for 2.5 s" in found(int(6.5 * SECOND))
    write(ring, heartbeat_ns=far + 2 * SECOND, steps=1)
    assert found(7 * SECOND) == ""
    assert "silent" in found(10 * SECOND)
