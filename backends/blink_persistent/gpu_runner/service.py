"""What the owner of a GPU needs of a version in service, whoever schedules it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from blink_persistent.engines.place import SchedulerKind
from blink_server.backend import Endpoint
from blink_server.control import RunnerEnvironment
from blink_server.errors import BlinkError


class GpuLost(BlinkError):
    """Nothing can be served on this GPU by this process any more: it has to end."""


@dataclass(frozen=True, slots=True)
class Task:
    """A version to serve; `scheduler` goes over what its config.json says.

    `host_ranges` of its ring stay with this host's workers; the others are for frontends that
    reach into the GPU's memory. None: all stay.
    """

    environment: RunnerEnvironment
    threads: int
    scheduler: SchedulerKind | None
    host_ranges: int | None = None


class Service(Protocol):
    """A version in service. All calls from the thread that made it; all may raise GpuLost."""

    endpoint: Endpoint
    memory_bytes: int
    """Of the GPU's memory."""
    check_seconds: float
    """How often `check` is to be called."""

    def check(self) -> None:
        """Look after it. Raises EngineFailure where it can serve no longer."""
        ...

    def close_ring(self) -> None:
        """Accept nothing more; what is in flight goes on."""
        ...

    def is_drained(self) -> bool:
        """Whether nothing is in flight after `close_ring`."""
        ...

    def stop(self) -> None:
        """End it for its clients. Its memory stays."""
        ...

    def close(self) -> None:
        """Give its memory back; after `stop`."""
        ...


MakeService = Callable[[Task, Callable[[str, float], None]], Service]
"""Loads a version and puts it in service, telling its progress. Raises BlinkError."""
