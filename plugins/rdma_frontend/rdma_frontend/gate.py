"""The gate `rdma`: ranges of a ring on this host, leased for an agent on another machine."""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import socket
from collections.abc import Mapping
from typing import Any

from blink_persistent.frontend.shm import lease
from blink_persistent.ring import LAYOUT_HASH, Ring
from blink_server.backend import Endpoint
from blink_server.errors import Unavailable
from blink_server.remote.gates import Gate, GateOptions
from rdma_frontend.device import Device
from rdma_frontend.direct_gate import open_direct_gate
from rdma_frontend.host import HostEnd, HostMemory
from rdma_frontend.offers import offer_of


async def open_gate(name: str, endpoint: Endpoint, options: GateOptions) -> Gate:
    """Lease ranges of the ring, in a GPU's memory where they are offered there.

    Raises Unavailable.
    """
    if options.layout_hash != (mine := f"{LAYOUT_HASH:016x}"):
        raise Unavailable(f"ring layout {mine} differs from the agent's {options.layout_hash}")
    if endpoint.transport != "shm":
        raise Unavailable(f"{name}: no RDMA to a ring reached by {endpoint.transport!r}")
    if "direct" in endpoint.address:
        return await open_direct_gate(name, endpoint, options)
    with contextlib.ExitStack() as held:
        connection, answer = await lease(
            f"the runner of {name}", endpoint, held, ranges=options.ranges, fenced=True
        )
        with contextlib.ExitStack() as unused:
            unused.callback(_detach, connection)
            device = Device(options.device)
            held.callback(device.close)
            gate = RdmaGate(device, connection, answer, options.ranges, held)
            unused.pop_all()
        gate.resources = held.pop_all()
    return gate


class RdmaGate:
    """Fulfils `Gate`."""

    def __init__(
        self,
        device: Device,
        connection: socket.socket,
        answer: Mapping[str, Any],
        ranges: int,
        held: contextlib.ExitStack,
    ) -> None:
        """`answer` is the lease's, `held` takes what is to be given back. Raises Unavailable."""
        self.lost = asyncio.Event()
        self.resources = held
        file, self._bell, _ = answer["descriptors"]
        memory = HostMemory(file, first_range=answer["range"], ranges=ranges)
        self._end = HostEnd(device, memory)
        held.callback(self._give_back, connection)
        self._ring = Ring(mmap.mmap(file, answer["bytes"]))
        self._offer = offer_of(answer, ranges)
        loop = asyncio.get_running_loop()
        loop.add_reader(self._end.fd, self._heard)
        held.callback(loop.remove_reader, self._end.fd)
        loop.add_reader(connection, self._listen, connection)
        held.callback(loop.remove_reader, connection)

    async def offer(self) -> Mapping[str, Any]:
        """Another queue pair, and other keys."""
        return {**self._offer, "address": self._end.renew()}

    async def connect(self, name: Mapping[str, Any]) -> Mapping[str, Any]:
        """Bring this end's queue pair up."""
        return self._end.connect(name)

    def in_use(self) -> int:
        """Slots that are not {submit, EMPTY}."""
        return self._ring.in_flight(self._offer["first_range"], self._offer["ranges"])

    def close(self) -> None:
        """Queue pair to ERR and destroyed, regions deregistered, the lease, then the device.

        Raises Unavailable where something may still land: the ranges then stay this process's.
        """
        self.resources.close()

    def _give_back(self, connection: socket.socket) -> None:
        self._end.close()
        _detach(connection)

    def _heard(self) -> None:
        if self._end.heard():
            with contextlib.suppress(BlockingIOError):  # a full counter has woken it already
                os.eventfd_write(self._bell, 1)

    def _listen(self, connection: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            try:
                gone = not connection.recv(4096)
            except ConnectionError:
                gone = True
            if gone:
                asyncio.get_running_loop().remove_reader(connection)
                self.lost.set()


def _detach(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the runner is gone: it needs not be told
        connection.send(b'{"type": "detach"}\n')
