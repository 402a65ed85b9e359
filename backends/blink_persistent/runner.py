"""The runner: the process that owns one version's engine, ring and scheduler.

    provision the engine -> create the ring -> start the scheduler -> lease ranges -> READY

Its threads: the scheduler's (native, never holds the interpreter lock), the engine's (runs what
the scheduler launches), the lease keeper's, and the control channel's. The main thread waits for
commands. Started by the provisioner: `python -m blink_persistent.runner --threads N`.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import sys
import threading
import time
from pathlib import Path

from blink_persistent import _native
from blink_persistent.engines import Launch, Provisioned
from blink_persistent.leases import LeaseKeeper
from blink_persistent.loading import Assignment
from blink_persistent.ring import Ring, create_ring_memory
from blink_persistent.serving import (
    is_drained,
    lease_limits,
    new_eventfd,
    resident_bytes,
    ring_shape,
)
from blink_persistent.stall import StallWatch, StepLimits
from blink_server.backend import Endpoint, ModelVersion
from blink_server.control import RunnerChannel
from blink_server.errors import EngineFailure
from blink_server.messages import Drain
from blink_server.runner_main import run_runner

log = logging.getLogger(__name__)

_ENGINE_ERROR = 1
_ENGINE_DIED = 70  # exit statuses
_STALLED = 71
_LAUNCH_WAIT_MS = 1000
_DRAIN_CHECK_SECONDS = 0.02


class Runner:
    """One version in service."""

    def __init__(self, version: ModelVersion, provisioned: Provisioned, epoch: int) -> None:
        self._provisioned = provisioned
        limits = version.config["limits"]
        shape = provisioned.shape
        self._ring_fd, memory = create_ring_memory(ring_shape(limits), epoch)
        self.ring = Ring(memory)
        bells = (new_eventfd() for _ in range(1 + self.ring.range_count))
        self._doorbell, *self._notify = bells
        self._scheduler = _native.HostScheduler(
            self.ring.atomic, provisioned.host, doorbell=self._doorbell, notify=self._notify
        )
        self._engine = threading.Thread(target=self._run_engine, name="engine", daemon=True)
        self._stopping = threading.Event()
        step_limits = StepLimits(shape.grid, limits["step_timeout_seconds"])
        self._watch = StallWatch(self.ring, step_limits, on_stall=_leave_hung)
        self._leases: LeaseKeeper | None = None
        self._lease_limits = lease_limits(limits, shape)

    def serve(self, socket_path: Path) -> None:
        """Start scheduling and lease the ring on `socket_path`; returns at once."""
        self._engine.start()
        self._scheduler.start()
        self._watch.start()
        self._leases = LeaseKeeper(
            self.ring,
            self._ring_fd,
            socket_path=socket_path,
            doorbell=self._doorbell,
            notify=self._notify,
            limits=self._lease_limits,
        )
        self._leases.start()

    def close_ring(self) -> None:
        """Accept nothing more; waits for nothing."""
        self._scheduler.close()

    def drain(self, seconds: float) -> bool:
        """Accept nothing more and wait until every slot is empty; False where time ran out."""
        self.close_ring()
        deadline = time.monotonic() + seconds
        while not is_drained(self.ring):
            if time.monotonic() >= deadline:
                return False
            self._stopping.wait(_DRAIN_CHECK_SECONDS)
        return True

    def close(self) -> None:
        """Stop between two steps and give everything back."""
        if self._leases is not None:
            self._leases.close()
        self._scheduler.stop()  # waits for the running step, so the engine thread ends after it
        self._watch.close()
        self._stopping.set()
        self._engine.join()
        self._provisioned.close()
        for fd in (self._ring_fd, self._doorbell, *self._notify):
            os.close(fd)

    def _run_engine(self) -> None:
        try:
            self._step_until_stopped()
        except BaseException:
            # Without its engine thread the runner would look alive and never answer.
            log.exception("the engine thread died")
            os._exit(_ENGINE_DIED)

    def _step_until_stopped(self) -> None:
        while not self._stopping.is_set():
            launched = self._scheduler.next_launch(_LAUNCH_WAIT_MS)
            if launched is None:
                continue
            launch, error = Launch(*launched), 0
            try:
                self._provisioned.step(launch)
            except EngineFailure:
                log.exception("the step %s failed", launch)
                error = _ENGINE_ERROR
            self._scheduler.complete(launch.phase, error)


def run(channel: RunnerChannel, threads: int) -> int:
    """Serve until told to drain or stop; the exit status."""
    assignment = Assignment.read(channel.environment)
    provisioned = assignment.provision(threads=threads, progress=channel.progress)
    runner = Runner(assignment.version, provisioned, channel.environment.epoch)
    socket_path = channel.environment.runtime_directory / "ring.sock"
    try:
        runner.serve(socket_path)
        channel.ready(Endpoint("shm", {"socket": str(socket_path)}), resident_bytes())
        for command in channel.commands():
            if isinstance(command, Drain) and not runner.drain(command.deadline_seconds):
                log.warning("stopping with requests in flight: the drain's time is over")
            return 0
        return 0
    finally:
        runner.close()


def _leave_hung(reason: str) -> None:
    """End the process: a hung step cannot be taken back, its supervisor can start afresh."""
    faulthandler.dump_traceback(all_threads=True)
    log.critical("%s", reason)  # the last line: the supervisor shows it as the reason
    os._exit(_STALLED)


def main(arguments: list[str] | None = None) -> int:
    """The process."""
    parser = argparse.ArgumentParser(prog="blink_persistent.runner")
    parser.add_argument("--threads", type=int, required=True, help="CPU threads of the engine")
    options = parser.parse_args(arguments)
    return run_runner(lambda channel: run(channel, options.threads))


if __name__ == "__main__":
    sys.exit(main())
