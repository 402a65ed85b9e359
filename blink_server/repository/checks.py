"""Checks of versions, in threads: one that takes long, or hangs in a plugin, holds up no other."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from blink_server.aside import begin_aside
from blink_server.backend import ModelVersion

PATIENCE = 5.0  # seconds that whoever reads the repositories waits for a check in all
_LOOK_AGAIN = 0.5


@dataclass(frozen=True, slots=True)
class _Check:
    subject: object
    begun: float
    outcome: Future[ModelVersion]


class RunningChecks:
    """The checks that have begun and were not done in time."""

    def __init__(self) -> None:
        self._running: dict[Path, _Check] = {}

    def keep_only(self, present: Collection[Path]) -> None:
        """Forget the version directories that are gone."""
        self._running = {d: check for d, check in self._running.items() if d in present}

    def outcome(
        self, directory: Path, subject: object, check: Callable[[], ModelVersion]
    ) -> ModelVersion | None:
        """What `check` finds; None while it goes on. Raises what it raises.

        `subject`: what it is about; where that has changed, a check that still runs is left behind.
        """
        running = self._running.pop(directory, None)
        if running is None or running.subject != subject:
            running = _Check(subject, time.monotonic(), begin_aside(check))
        left = running.begun + PATIENCE - time.monotonic()
        try:
            return running.outcome.result(max(0.0, left))
        except TimeoutError:
            if running.outcome.done():  # then the check itself has raised it
                raise
            self._running[directory] = running
            return None

    @property
    def due(self) -> float | None:
        """Seconds until it is worth looking again; None where all are done."""
        return _LOOK_AGAIN if self._running else None

    @property
    def directories(self) -> Collection[Path]:
        """The versions that are still being checked."""
        return self._running.keys()
