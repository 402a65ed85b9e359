"""A version scheduled on the GPU: ring in its memory, resident scheduler, agent for the workers."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator

from blink_persistent.agent.offer import RingOffer
from blink_persistent.engines import DeviceProvisioned
from blink_persistent.gpu.device_ring import DeviceRing
from blink_persistent.gpu.device_scheduler import DeviceScheduler
from blink_persistent.gpu.driver import CudaError
from blink_persistent.gpu_runner.agent_process import AgentProcess
from blink_persistent.gpu_runner.direct_leases import DirectLeases
from blink_persistent.gpu_runner.pulse import pulsing
from blink_persistent.gpu_runner.residents import Residents
from blink_persistent.gpu_runner.service import GpuLost, Task
from blink_persistent.ring import Condition
from blink_persistent.serving import is_drained, lease_limits, ring_shape
from blink_persistent.stall import HeartbeatClock, StepLimits, stalled
from blink_server.backend import Endpoint, ModelVersion
from blink_server.errors import EngineFailure

log = logging.getLogger(__name__)

_CHECKS_OF_A_LIMIT = 10
_LONGEST_CHECK_SECONDS = 0.5
_FLUSH_SECONDS = 5.0
_SHORT_LIFE_SECONDS = 30.0  # of an agent
_MOST_SHORT_LIVES = 3  # in succession, after which it is no accident


class DeviceService:
    """Fulfils `Service`. `completion` is that of `DeviceProvisioned.complete`."""

    def __init__(
        self,
        task: Task,
        version: ModelVersion,
        provisioned: DeviceProvisioned,
        residents: Residents,
    ) -> None:
        """Puts it in service; owns `provisioned` once made. Raises EngineFailure, GpuLost."""
        limits, shape = version.config["limits"], provisioned.shape
        self._name = version.key
        self._provisioned = provisioned
        self._residents = residents
        self._limits = StepLimits(shape.grid, limits["step_timeout_seconds"])
        self._clock, self._parks = HeartbeatClock(), -1
        self.check_seconds = min(self._limits.seconds / _CHECKS_OF_A_LIMIT, _LONGEST_CHECK_SECONDS)
        folder = task.environment.runtime_directory
        self._sockets = folder / "offer.sock", folder / "ring.sock"
        self.memory_bytes = 0
        self._agent: AgentProcess | None = None
        self._short_lives = 0
        with contextlib.ExitStack() as in_service:
            self._put_in_service(task, version, in_service)
            self._in_service = in_service.pop_all()

    def _put_in_service(
        self, task: Task, version: ModelVersion, in_service: contextlib.ExitStack
    ) -> None:
        """`in_service` ends each part that has begun."""
        gpu, provisioned, epoch = self._provisioned.gpu, self._provisioned, task.environment.epoch
        limits, direct_socket = version.config["limits"], self._sockets[0].with_name("direct.sock")
        owners = lease_limits(limits, provisioned.shape)
        self._ring = DeviceRing(gpu, ring_shape(limits), epoch, pinned=False)
        in_service.callback(self._ring.close)
        self._scheduler = DeviceScheduler(gpu, self._ring, provisioned.tables, provisioned.graphs)
        self._direct = DirectLeases.open(
            *(self._name, gpu, self._ring),
            host_ranges=task.host_ranges,
            socket_path=direct_socket,
            limits=owners,
            still=self._still,
        )
        address = {"socket": str(self._sockets[1])}
        if self._direct is not None:
            in_service.callback(self._direct.close)
            address["direct"] = str(direct_socket)
        self.endpoint = Endpoint("shm", address)
        self._offer = RingOffer(
            self._sockets[0],
            {
                "transport": "cuda",
                "address": {"handle": gpu.share(self._ring.address).hex(), "device": 0},
                "first_range": 0,
                "ranges": self._direct.first if self._direct else self._ring.mirror.range_count,
                "epoch": epoch,
                "limits": owners,
            },
        )
        in_service.callback(self._offer.close)
        step_seconds = max(map(self._limits.of, provisioned.shape.grid.keys))
        self._residents.add(self._scheduler, step_seconds=step_seconds)
        in_service.callback(self._residents.remove, self._scheduler)
        self._offer.start()
        if self._direct is not None:
            self._direct.start()
        self.completion = provisioned.complete(self._scheduler.publish)
        in_service.callback(self._close_agent)
        self._start_agent()

    def check(self) -> None:
        """See `Service`: the scheduler's progress, and an agent that lives."""
        self._check_scheduler()
        assert self._agent is not None
        ended = self._agent.ended()
        if not ended:
            return
        self._agent.close()
        short = time.monotonic() - self._agent_since < _SHORT_LIFE_SECONDS
        self._short_lives = self._short_lives + 1 if short else 0
        if self._short_lives == _MOST_SHORT_LIVES:
            raise EngineFailure(f"its agents end soon after their start: {ended}")
        log.warning("%s: its agent ended: %s; another takes over", self._name, ended)
        self._start_agent()

    def close_ring(self) -> None:
        """See `Service`."""
        self._offer.flush(_FLUSH_SECONDS)
        self._scheduler.close_ring()

    def is_drained(self) -> bool:
        """See `Service`."""
        mirror = self._ring.mirror
        with self._residents.running():
            for region in (mirror.words, mirror.status, mirror.header):
                self._ring.pull(region)
        return is_drained(mirror)

    def stop(self) -> None:
        """See `Service`."""
        self._in_service.close()

    def close(self) -> None:
        """See `Service`."""
        try:
            with pulsing(self._residents, self._provisioned.gpu.make_current):
                self._provisioned.close()
        except CudaError as error:
            raise GpuLost(f"{self._name} cannot be given back: {error}") from error

    @contextlib.contextmanager
    def _still(self) -> Iterator[None]:
        """Any thread; no scheduler is resident inside."""
        self._provisioned.gpu.make_current()
        with self._residents.exclusive():
            yield

    def _start_agent(self) -> None:
        began = time.monotonic()
        self._agent = AgentProcess(self._name, *self._sockets)
        self._agent.wait_until_serving()
        self._agent_since = began

    def _close_agent(self) -> None:
        if self._agent is not None:
            self._agent.close()

    def _check_scheduler(self) -> None:
        with self._residents.running():
            if self._parks != self._residents.parks:
                self._parks = self._residents.parks
                self._clock.forget()
            try:
                ended = self._scheduler.is_idle()
                self._ring.pull(self._ring.mirror.header)
                if self._direct is not None:
                    self._direct.look()
                error = self._scheduler.error()
                parked = self._scheduler.condition() is Condition.PARKED
            except CudaError as lost:
                raise GpuLost(f"{self._name}: {lost}") from lost
        mirror = self._ring.mirror
        if parked:  # it has just been asked to, and goes on soon
            return
        if ended:
            raise EngineFailure(f"the scheduler on the GPU has ended: {error or 'unasked'}")
        now = self._clock.now_ns(mirror.field("heartbeat_ns"), time.monotonic_ns())
        if reason := stalled(mirror, self._limits, now):
            raise GpuLost(f"{self._name}: {reason}")
