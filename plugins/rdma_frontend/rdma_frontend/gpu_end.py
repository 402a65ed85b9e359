"""The host's end of an agent's connection to a ring in a GPU's memory, in the GPU's own process.

Not run on hardware yet; see docs/dpu.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from blink_persistent.agent.port import Part, Region
from blink_persistent.gpu.direct import DirectMemory
from blink_server.errors import Unavailable
from rdma_frontend.device import Device
from rdma_frontend.host import WRITTEN, HostEnd, Place
from rdma_frontend.verbs import verbs


class GpuMemory:
    """Ranges of a ring in a GPU's memory: fulfils `RingMemory`.

    A region for each part, since a GPU's pages cannot be mapped side by side. The scheduler there
    looks by itself.
    """

    bell = False

    def __init__(self, memory: DirectMemory, region_parts: Mapping[Region, Part]) -> None:
        """`region_parts`: bytes from the memory's start."""
        self._memory = memory
        self._parts = region_parts

    def register(self, device: Device, held: contextlib.ExitStack) -> dict[Region, Place]:
        """By the dma-buf where there is one that kernel and device take, else by nvidia-peermem.

        Never with relaxed ordering. Raises Unavailable.
        """
        faults = []
        for way in (self._by_dma_buf, self._by_peermem):
            try:
                with contextlib.ExitStack() as made:
                    places = {region: way(device, region, made) for region in self._parts}
                    held.push(made.pop_all())
                    return places
            except verbs().PyverbsError as error:
                faults.append(str(error))
        by_dma_buf, by_peermem = faults
        raise Unavailable(
            f"RDMA device {device.name!r} cannot reach the GPU's memory: neither by dma-buf, which "
            f"needs NVIDIA's open kernel modules and Linux 5.12 or later ({by_dma_buf}), nor by "
            f"nvidia-peermem, which comes with NVIDIA's driver: modprobe nvidia-peermem "
            f"({by_peermem})"
        )

    def _by_dma_buf(self, device: Device, region: Region, made: contextlib.ExitStack) -> Place:
        v, part = verbs(), self._parts[region]
        if self._memory.dma_buf is None:
            raise v.PyverbsError("the GPU's driver exports none")
        registered = v.DmaBufMR(
            device.protection, part.length, _access(region), self._memory.dma_buf, part.start
        )
        made.callback(registered.close)
        # pyverbs gives a dma-buf's bytes the addresses of their offsets in it.
        return part.start, part.length, registered.rkey

    def _by_peermem(self, device: Device, region: Region, made: contextlib.ExitStack) -> Place:
        part = self._parts[region]
        address = self._memory.address + part.start
        registered = verbs().MR(device.protection, part.length, _access(region), address=address)
        made.callback(registered.close)
        return address, part.length, registered.rkey


class GpuEnd(HostEnd):
    """A `HostEnd` with a device of its own."""

    def __init__(
        self, device: str, memory: DirectMemory, region_parts: Mapping[Region, Part]
    ) -> None:
        """Raises Unavailable."""
        self._opened = Device(device)
        try:
            super().__init__(self._opened, GpuMemory(memory, region_parts))
        except BaseException:
            self._opened.close()
            raise

    def close(self) -> None:
        """Queue pair to ERR and destroyed, regions deregistered, then the device.

        Raises Unavailable.
        """
        super().close()
        self._opened.close()


def _access(region: Region) -> Any:
    e = verbs().e
    read = e.IBV_ACCESS_REMOTE_READ
    return (
        read | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_LOCAL_WRITE if region in WRITTEN else read
    )
