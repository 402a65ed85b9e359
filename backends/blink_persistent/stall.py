"""Notices a scheduler that makes no progress: a step past its limit, or a heart that is still.

Death is a process's exit, which its parent sees; a hang shows only in the ring's header. The watch
ends the runner then, and its supervisor starts another.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from blink_persistent.graph_grid import PHASES, GraphGrid, GraphKey
from blink_persistent.ring import Ring

_TOKENS_OF_A_LIMIT = 64
_CHECKS_OF_A_LIMIT = 10
_LONGEST_CHECK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class StepLimits:
    """How long a step may take: `seconds` for up to 64 tokens, in proportion for longer keys."""

    grid: GraphGrid
    seconds: float

    def of(self, key: GraphKey) -> float:
        """Seconds that a step of this key may take."""
        return self.seconds * max(1.0, key.all_tokens / _TOKENS_OF_A_LIMIT)


def stalled(ring: Ring, limits: StepLimits, now_ns: int) -> str:
    """Why the scheduler counts as hung at `now_ns` (CLOCK_MONOTONIC), or "" while it does not."""
    field = ring.field
    steps = field("steps")  # read first: a step that ends meanwhile makes the rest look fresher
    if ring.launched() > steps:
        key = limits.grid.keys[field("running_graph")]
        seconds = (now_ns - field("step_started_ns")) / 1e9
        if seconds > limits.of(key):
            return f"no progress: {_describe(key)} has run for {_against(seconds, limits.of(key))}"
    silent = (now_ns - field("heartbeat_ns")) / 1e9
    if silent > limits.seconds:
        return f"no progress: the scheduler is silent since {_against(silent, limits.seconds)}"
    return ""


class HeartbeatClock:
    """The clock of a scheduler that is not this host's, as far as its heartbeats tell.

    It stood at the last heartbeat when that was first seen, and has gone on with CLOCK_MONOTONIC.
    """

    def __init__(self) -> None:
        self._beat_ns: int | None = None
        self._seen_ns = 0

    def forget(self) -> None:
        """The scheduler has stood still on purpose: its silence so far means nothing."""
        self._beat_ns = None

    def now_ns(self, heartbeat_ns: int, host_ns: int) -> int:
        """The scheduler's time now, given its header's `heartbeat_ns` and CLOCK_MONOTONIC."""
        if heartbeat_ns != self._beat_ns:
            self._beat_ns, self._seen_ns = heartbeat_ns, host_ns
        return heartbeat_ns + host_ns - self._seen_ns


def _describe(key: GraphKey) -> str:
    rows = f"{key.parts[0].sequences} rows"
    prompts = f"{key.sequences} sequences and {key.tokens} tokens"
    work = {"decode": rows, "prefill": prompts, "mixed": f"{rows}, {prompts}"}
    name = PHASES[key.phase]
    return f"the {name} step of {work[name]}"


def _against(seconds: float, limit: float) -> str:
    return f"{seconds:.1f} s (its limit is {limit:.1f} s)"


class StallWatch:
    """Calls `on_stall(reason)` once, from a thread of its own, when the scheduler hangs."""

    def __init__(self, ring: Ring, limits: StepLimits, on_stall: Callable[[str], None]) -> None:
        self._ring = ring
        self._limits = limits
        self._on_stall = on_stall
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stall watch", daemon=True)

    def start(self) -> None:
        """Watch from now on; the scheduler must be running."""
        self._thread.start()

    def close(self) -> None:
        """Stop watching."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        pause = min(self._limits.seconds / _CHECKS_OF_A_LIMIT, _LONGEST_CHECK_SECONDS)
        while not self._stop.wait(pause):
            reason = stalled(self._ring, self._limits, time.monotonic_ns())
            if reason:
                self._on_stall(reason)
                return
