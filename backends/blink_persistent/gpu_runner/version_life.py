"""One version on a GPU, from its link's first line to its last."""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from blink_persistent.engines.place import SchedulerKind
from blink_persistent.gpu_runner.service import GpuLost, MakeService, Service, Task
from blink_persistent.gpu_runner.turns import Turns
from blink_persistent.lines import LineSocket
from blink_server.control import RunnerEnvironment
from blink_server.errors import BlinkError, MemoryRefused

log = logging.getLogger(__name__)

_DRAIN_CHECK_SECONDS = 0.02
_SEND_SECONDS = 5.0  # a link that reads nothing for so long is given up


class _Unwanted(BlinkError):
    """The version was given up while it was loaded."""


class VersionLife(threading.Thread):
    """All of a version's calls of CUDA come from this thread."""

    def __init__(
        self,
        connection: socket.socket,
        make_service: MakeService,
        turns: Turns,
        *,
        on_lost: Callable[[GpuLost], None],
        leaves: Callable[[VersionLife], bool],
    ) -> None:
        """`on_lost` ends the process. `leaves` is called last, when all is given back, and says
        whether the owner goes too."""
        super().__init__(name="version", daemon=True)
        connection.settimeout(_SEND_SECONDS)
        self._connection = connection
        self._link = LineSocket(connection)
        self._sending = threading.Lock()
        self._make_service = make_service
        self._turns = turns
        self._on_lost = on_lost
        self._leaves = leaves
        self._task: Task | None = None
        self._unwanted = False  # its link is gone, or has said "stop"
        self._drain_until: float | None = None

    def say(self, kind: str, **fields: object) -> None:
        """Tell the link; any thread. A link that is gone, or reads nothing, loses the version."""
        with self._sending:
            try:
                self._link.send({"type": kind, **fields})
            except OSError:
                with contextlib.suppress(OSError):  # the reading side sees it then
                    self._connection.shutdown(socket.SHUT_RDWR)

    def say_if_heard(self, kind: str, **fields: object) -> None:
        """As `say`, but what the link is slow to read is left out; never waits."""
        _, writable, _ = select.select([], [self._connection], [], 0)
        if writable:
            self.say(kind, **fields)

    def run(self) -> None:
        """Load, serve, give back."""
        try:
            self._live()
        except GpuLost as lost:
            self._on_lost(lost)
        except Exception as error:
            log.exception("%s: a defect", self.name)
            self.say("failed", reason=f"{type(error).__name__}: {error}")
        self.say("ended", leaving=self._leaves(self))
        self._link.close()

    def _live(self) -> None:
        while self._task is None:
            self._hear(None)
            if self._unwanted:
                return
        task = self._task
        self.name = f"{task.environment.model}:{task.environment.version}"
        try:
            with self._turns.to_load():
                self._progress("start", 0.0)
                service = self._make_service(task, self._progress)
        except _Unwanted:
            return
        except GpuLost:
            raise
        except (BlinkError, RuntimeError, MemoryError) as error:
            if not isinstance(error, BlinkError):
                log.exception("%s: cannot be loaded", self.name)
            reason, memory = str(error), isinstance(error, MemoryRefused)
            self.say("failed", reason=reason or type(error).__name__, memory=memory)
            return
        with self._given_back(service):
            self.say(
                "ready",
                transport=service.endpoint.transport,
                address=dict(service.endpoint.address),
                memory_bytes=service.memory_bytes,
            )
            self._serve(service)

    @contextlib.contextmanager
    def _given_back(self, service: Service) -> Iterator[None]:
        reason = ""
        try:
            yield
        except GpuLost:
            raise
        except BlinkError as error:
            reason = str(error)
        service.stop()
        if reason:
            self.say("failed", reason=reason)  # its turn to be given back may be far away
        with self._turns.to_unload():
            service.close()
        log.info("%s is given back", self.name)

    def _serve(self, service: Service) -> None:
        """Until the link is gone or says "stop", or all that is in flight is over."""
        due = time.monotonic()
        while not self._unwanted:
            draining = self._drain_until is not None
            self._hear(_DRAIN_CHECK_SECONDS if draining else service.check_seconds)
            if self._drain_until is not None:
                if not draining:
                    service.close_ring()
                if service.is_drained():
                    return
                if time.monotonic() >= self._drain_until:
                    log.warning("%s: ends with requests in flight: the time is over", self.name)
                    return
            if time.monotonic() >= due:
                service.check()
                due = time.monotonic() + service.check_seconds

    def _hear(self, seconds: float | None) -> None:
        """What the link says within some time; None waits for it."""
        readable, _, _ = select.select([self._connection], [], [], seconds)
        if not readable:
            return
        try:
            for message in self._link.messages():
                self._obey(message)
        except (OSError, ValueError, KeyError, TypeError, BlinkError) as error:
            log.warning("%s: its link: %s", self.name, error)
            self._unwanted = True
        self._unwanted = self._unwanted or self._link.ended

    def _obey(self, message: Mapping[str, Any]) -> None:
        if message.get("type") == "load":
            self._task = _task_of(message)
        elif message.get("type") == "drain":
            self._drain_until = time.monotonic() + float(message["seconds"])
        elif message.get("type") == "stop":
            self._unwanted = True

    def _progress(self, stage: str, fraction: float) -> None:
        """Tell it, and give the load up where nobody wants it any more."""
        self._hear(0)
        if self._unwanted:
            raise _Unwanted(f"{self.name} is not wanted any more")
        self.say_if_heard("progress", stage=stage, fraction=fraction)


def _task_of(message: Mapping[str, Any]) -> Task:
    """Raises BlinkError, KeyError, ValueError."""
    scheduler = message["scheduler"]
    return Task(
        environment=RunnerEnvironment.read(message["environment"]),
        threads=message["threads"],
        scheduler=SchedulerKind(scheduler) if scheduler else None,
        host_ranges=message["host_ranges"],
    )
