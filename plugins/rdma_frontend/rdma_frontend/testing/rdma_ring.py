"""Both ends of RDMA connections to one ring in one process, for tests."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Callable

from blink_persistent.agent.port import RingPort
from rdma_frontend.device import Device
from rdma_frontend.host import HostEnd, HostMemory
from rdma_frontend.port import RdmaPort


class RdmaRing:
    """A ring in memory offered on one device, reached from another; its bell on a thread."""

    def __init__(
        self, ring_fd: int, ring_bell: Callable[[], None], *, host: str, frontend: str
    ) -> None:
        """`host` and `frontend` are names of devices."""
        self._ring_fd, self._ring_bell = ring_fd, ring_bell
        self._frontend = frontend
        self._held = contextlib.ExitStack()
        self._device = Device(host)
        self._held.callback(self._device.close)
        self.ends: list[HostEnd] = []
        """The host's end of every port, in the order in which they were made."""
        self._changed = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._closing = False
        self._thread = threading.Thread(target=self._listen, name="bells", daemon=True)
        self._thread.start()

    def port(self, first_range: int, ranges: int) -> RingPort:
        """A new agent's."""
        memory = HostMemory(self._ring_fd, first_range=first_range, ranges=ranges)
        return self.port_to(HostEnd(self._device, memory), first_range, ranges)

    def port_to(self, end: HostEnd, first_range: int, ranges: int) -> RdmaPort:
        """A connection to this end of the host's, the one before being over."""
        if end not in self.ends:
            self.ends.append(end)
        address = end.renew()
        os.eventfd_write(self._changed, 1)
        device = Device(self._frontend)
        return RdmaPort(device, address, end.connect, first_range=first_range, ranges=ranges)

    def close(self) -> None:
        """The ports are closed already."""
        self._closing = True
        os.eventfd_write(self._changed, 1)
        self._thread.join()
        os.close(self._changed)
        for end in self.ends:
            end.close()
        self._held.close()

    def _listen(self) -> None:
        while not self._closing:
            ends = {end.fd: end for end in self.ends}
            for fd in select.select([*ends, self._changed], [], [])[0]:
                if fd == self._changed:
                    os.eventfd_read(fd)
                elif ends[fd].heard():
                    self._ring_bell()
