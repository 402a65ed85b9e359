"""A scripted ring whose scheduler and engine run on threads of their own, as in a runner."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

from blink_persistent.testing.scripted_harness import ScriptedHarness
from blink_persistent.testing.scripted_shape import ScriptedShape

_LAUNCH_WAIT_MS = 100


class ThreadedRing:
    """Runs the steps of a `ScriptedHarness`; the engine steps only while `open_gate` is set.

    With `scheduling=False` nothing is claimed before `start_scheduler`. `step_error` is what the
    engine reports with each step; not 0 fails it.
    """

    def __init__(self, shape: ScriptedShape, *, scheduling: bool = True) -> None:
        self.harness = ScriptedHarness(shape, trace_capacity=0)
        self.open_gate = threading.Event()
        self.open_gate.set()
        self.step_error = 0
        self._steps_left = 0  # until the engine clears the gate; 0: it does not
        self._counting = threading.Lock()
        self._stopping = threading.Event()
        self._engine = threading.Thread(target=self._run_engine, name="engine")
        self._engine.start()
        if scheduling:
            self.start_scheduler()

    def start_scheduler(self) -> None:
        """Claim and schedule from now on."""
        self.harness.scheduler.start()

    def stand_still_after(self, steps: int) -> None:
        """Have the engine clear the gate after so many further steps."""
        with self._counting:
            self._steps_left = steps

    def go_on(self) -> None:
        """Set the gate, also for an engine that has not come to clear it yet."""
        with self._counting:
            self._steps_left = 0
            self.open_gate.set()

    def close(self) -> None:
        """Stop both threads and give everything back."""
        self.go_on()
        self.harness.scheduler.stop()  # first: it waits for the step that the engine runs
        self._stopping.set()
        self._engine.join()
        self.harness.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _run_engine(self) -> None:
        scheduler = self.harness.scheduler
        while not self._stopping.is_set():
            launch = scheduler.next_launch(_LAUNCH_WAIT_MS)
            if launch is None:
                continue
            self.open_gate.wait()
            self._count_step()
            _, phase, *shape = launch
            self.harness.scripted.step(phase, *shape)
            scheduler.complete(phase, self.step_error)

    def _count_step(self) -> None:
        with self._counting:
            if self._steps_left:
                self._steps_left -= 1
                if self._steps_left == 0:
                    self.open_gate.clear()
