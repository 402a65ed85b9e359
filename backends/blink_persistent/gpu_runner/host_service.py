"""A version whose graphs a thread of the host launches, over a ring in the host's memory."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack

import numpy as np

from blink_persistent.engines import DeviceProvisioned
from blink_persistent.gpu.driver import CudaError
from blink_persistent.gpu.host_driven import HostDrivenScheduler
from blink_persistent.gpu_runner.service import GpuLost, Task
from blink_persistent.leases import LeaseKeeper
from blink_persistent.ring import Ring, create_ring_memory
from blink_persistent.serving import is_drained, lease_limits, new_eventfd, ring_shape
from blink_persistent.stall import StepLimits, stalled
from blink_server.backend import Endpoint, ModelVersion

_CHECKS_OF_A_LIMIT = 10
_LONGEST_CHECK_SECONDS = 1.0


class HostService:
    """Fulfils `Service`. Workers attach to the ring itself: there is no agent."""

    def __init__(self, task: Task, version: ModelVersion, provisioned: DeviceProvisioned) -> None:
        """Puts it in service; owns `provisioned` once made. Raises CudaError, Unavailable."""
        limits, shape = version.config["limits"], provisioned.shape
        self._name = version.key
        self._provisioned = provisioned
        self._limits = StepLimits(shape.grid, limits["step_timeout_seconds"])
        self.check_seconds = min(self._limits.seconds / _CHECKS_OF_A_LIMIT, _LONGEST_CHECK_SECONDS)
        socket_path = task.environment.runtime_directory / "ring.sock"
        self.endpoint = Endpoint("shm", {"socket": str(socket_path)})
        self.memory_bytes = 0
        provisioned.complete(lambda graph, executable: None).result()
        with ExitStack() as held, ExitStack() as in_service:
            ring_fd, memory = create_ring_memory(ring_shape(limits), task.environment.epoch)
            held.callback(os.close, ring_fd)
            self._ring = Ring(memory)
            bells = []
            for _ in range(1 + self._ring.range_count):
                bells.append(new_eventfd())
                held.callback(os.close, bells[-1])
            doorbell, *notify = bells
            self._scheduler = HostDrivenScheduler(
                provisioned.gpu,
                np.frombuffer(memory, np.uint8),
                provisioned.tables,
                provisioned.graphs,
                doorbell=doorbell,
                notify=notify,
                polls=True,
            )
            held.callback(self._scheduler.close)
            self._leases = LeaseKeeper(
                self._ring,
                ring_fd,
                socket_path=socket_path,
                doorbell=doorbell,
                notify=notify,
                limits=lease_limits(limits, shape),
            )
            in_service.callback(self._scheduler.stop)
            in_service.callback(self._leases.close)
            self._scheduler.launch()
            self._leases.start()
            self._held, self._in_service = held.pop_all(), in_service.pop_all()

    def check(self) -> None:
        """See `Service`: the scheduler's progress."""
        self._scheduler.is_idle()
        if reason := stalled(self._ring, self._limits, time.monotonic_ns()):
            raise GpuLost(f"{self._name}: {reason}")

    def close_ring(self) -> None:
        """See `Service`."""
        self._scheduler.close_ring()

    def is_drained(self) -> bool:
        """See `Service`."""
        return is_drained(self._ring)

    def stop(self) -> None:
        """See `Service`."""
        self._in_service.close()

    def close(self) -> None:
        """See `Service`."""
        try:
            self._held.close()
            self._provisioned.close()
        except CudaError as error:
            raise GpuLost(f"{self._name} cannot be given back: {error}") from error
