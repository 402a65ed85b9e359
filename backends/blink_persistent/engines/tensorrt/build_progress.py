"""TensorRT's progress as one fraction, and the way to stop a build."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any


@dataclass(slots=True)
class _Phase:
    """A phase that runs: a part of its parent's current step, or of everything."""

    parent: str | None
    steps: int
    done: int = 0


class BuildProgress:
    """The methods of an `IProgressMonitor`; `build_progress` joins them to a module's class.

    A phase stands for one step of its parent. The fraction never falls. What `report` raises
    stops the build, and is kept in `error`.
    """

    trt: Any

    def __init__(self, report: Callable[[float], None]) -> None:
        self.trt.IProgressMonitor.__init__(self)
        self._report = report
        self._phases: dict[str, _Phase] = {}
        self._told = 0.0
        self._lock = threading.Lock()
        self.error: BaseException | None = None

    def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
        with self._lock:
            self._phases[phase_name] = _Phase(parent_phase, num_steps)

    def step_complete(self, phase_name: str, step: int) -> bool:
        """Whether to go on."""
        with self._lock:
            self._phases[phase_name].done = step + 1
            return self._tell()

    def phase_finish(self, phase_name: str) -> None:
        with self._lock:
            self._phases.pop(phase_name, None)

    def _tell(self) -> bool:
        if self.error is None:
            self._told = max(self._told, self._fraction())
            try:
                self._report(self._told)
            except BaseException as error:
                self.error = error
        return self.error is None

    def _fraction(self) -> float:
        """Of the phase without a parent that runs: its steps, and what is done of the next one."""
        inner, name = 0.0, self._innermost()
        while name is not None:
            phase = self._phases[name]
            inner = min(1.0, (phase.done + inner) / phase.steps)
            name = phase.parent if phase.parent in self._phases else None
        return inner

    def _innermost(self) -> str | None:
        parents = {phase.parent for phase in self._phases.values()}
        return next((name for name in self._phases if name not in parents), None)


@cache
def _monitor_class(trt: Any) -> Any:
    return type("Monitor", (BuildProgress, trt.IProgressMonitor), {"trt": trt})


def build_progress(trt: Any, report: Callable[[float], None]) -> Any:
    """A `BuildProgress` that a builder of the module takes."""
    return _monitor_class(trt)(report)
