"""The process that owns a GPU: `python -m blink_persistent.gpu_runner`, started by `reach`."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import ExitStack

from blink_persistent.engines.place import SchedulerKind
from blink_persistent.gpu.driver import CudaError, Gpu
from blink_persistent.gpu_runner.device_service import DeviceService
from blink_persistent.gpu_runner.host_service import HostService
from blink_persistent.gpu_runner.owner import main
from blink_persistent.gpu_runner.pulse import pulsing
from blink_persistent.gpu_runner.residents import Residents
from blink_persistent.gpu_runner.service import GpuLost, Service, Task
from blink_persistent.loading import Assignment
from blink_persistent.serving import gpu_bytes
from blink_server.errors import BlinkError, MemoryRefused

log = logging.getLogger(__name__)

_PAUSE_SECONDS = 0.5
_OUT_OF_MEMORY = re.compile("out.of.memory", re.IGNORECASE)


class GpuServices:
    """Puts versions in service on the GPU that this process sees as number 0."""

    def __init__(self) -> None:
        self._residents = Residents()
        self._gpu: Gpu | None = None  # made where no scheduler is resident yet
        self._completion: Future[None] | None = None  # of the version loaded last

    def __call__(self, task: Task, progress: Callable[[str, float], None]) -> Service:
        """See `MakeService`."""
        while self._completion is not None and wait([self._completion], _PAUSE_SECONDS).not_done:
            progress("graphs of another version", 0.0)
        gpu = self._gpu = self._gpu or Gpu()
        gpu.make_current()
        try:
            before, parks = gpu.free_bytes(), self._residents.parks
            with pulsing(self._residents, gpu.make_current):
                service = self._make(task, progress, before)
            service.memory_bytes = before - gpu.free_bytes()
        except (CudaError, RuntimeError) as error:  # the driver's, PyTorch's
            _must_live(gpu, error)
            first_line = str(error).partition("\n")[0]
            if _OUT_OF_MEMORY.search(first_line):
                raise MemoryRefused(f"memory: {first_line}") from error
            raise
        if self._completion is not None:
            self._pulse_until(self._completion)
        log.info(
            "%s:%d is in service with %.2f GiB of the GPU; others stood still %d times for it, "
            "so far %.1f ms at most, without the steps before %.1f ms",
            task.environment.model,
            task.environment.version,
            service.memory_bytes / 2**30,
            self._residents.parks - parks,
            1e3 * self._residents.longest_park,
            1e3 * self._residents.longest_rest,
        )
        return service

    def _pulse_until(self, completion: Future[None]) -> None:
        assert self._gpu is not None
        pulse = ExitStack()
        pulse.enter_context(pulsing(self._residents, self._gpu.make_current))
        completion.add_done_callback(lambda _: pulse.close())

    def _make(self, task: Task, progress: Callable[[str, float], None], free: int) -> Service:
        assignment = Assignment.read(task.environment)
        version, place = assignment.version, assignment.engine.place(assignment.version)
        if place is None:
            raise BlinkError(f"{version.key} runs on no GPU")
        needed = gpu_bytes(assignment.engine, version)
        if needed > free:
            gib = f"needs {needed / 2**30:.2f} GiB, {free / 2**30:.2f} GiB of the GPU are free"
            raise MemoryRefused(f"memory: {gib}")
        provisioned = assignment.provision(
            threads=task.threads, progress=progress, exclusive=self._residents.exclusive
        )
        try:
            if (task.scheduler or place.scheduler) is SchedulerKind.HOST:
                return HostService(task, version, provisioned)
            service = DeviceService(task, version, provisioned, self._residents)
            self._completion = service.completion
            return service
        except GpuLost:
            raise  # what still runs would be waited for
        except BaseException:
            provisioned.close()
            raise


def _must_live(gpu: Gpu, cause: Exception) -> None:
    """Raises GpuLost where an error has killed the context, after which every call fails."""
    try:
        gpu.free_bytes()
    except CudaError as error:
        raise GpuLost(f"the GPU's context is lost: {cause}") from error


if __name__ == "__main__":
    sys.exit(main(GpuServices()))
