"""Energy from the GPUs' own counters (NVML). GPU boards only: the paper measured at the wall."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from blink_server.errors import BlinkError


class EnergyMeter:
    """Reads the counters of some GPUs; `names` are theirs."""

    def __init__(self, nvml: Any, handles: Sequence[Any]) -> None:
        self._nvml = nvml
        self._handles = handles
        self.names = [str(nvml.nvmlDeviceGetName(handle)) for handle in handles]

    def read(self) -> float:
        """Millijoules since the driver was loaded, of all its GPUs together."""
        return float(sum(map(self._nvml.nvmlDeviceGetTotalEnergyConsumption, self._handles)))


@contextlib.contextmanager
def energy_meter(indices: Sequence[int]) -> Iterator[EnergyMeter | None]:
    """A meter of the GPUs with these indices, of all if there are none given.

    None where this machine has no GPU or one without a counter, unless indices were asked for:
    then BlinkError is raised.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if indices:
            raise BlinkError(f"--gpu {indices[0]}: NVML says: {error}") from None
        yield None
        return
    try:
        yield _meter(pynvml, indices)
    finally:
        pynvml.nvmlShutdown()


def _meter(nvml: Any, indices: Sequence[int]) -> EnergyMeter | None:
    try:
        chosen = indices or range(nvml.nvmlDeviceGetCount())
        meter = EnergyMeter(nvml, [nvml.nvmlDeviceGetHandleByIndex(each) for each in chosen])
        meter.read()
    except nvml.NVMLError as error:
        if indices:
            raise BlinkError(f"--gpu {list(indices)}: NVML says: {error}") from None
        return None
    return meter if meter.names else None
