"""The host's end of an agent's connection: memory regions over its ranges, and a queue pair."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from blink_persistent.agent.port import Region, header_of, parts
from blink_persistent.ring import HEADER
from rdma_frontend.completions import CompletionQueue
from rdma_frontend.device import Buffer, Connection, Device, refusals_named
from rdma_frontend.stitched import Stitched
from rdma_frontend.verbs import verbs

READ_ONLY = (Region.HEADER, Region.STATUS, Region.TIMINGS, Region.OUTPUTS)
WRITTEN = (Region.WORDS, Region.RECORDS, Region.PROMPTS, Region.AUX)
_RINGS = 256  # of the bell, that may be under way

Place = tuple[int, int, int]
"""(address, length, remote key) of a region's part."""


class RingMemory(Protocol):
    """A ring's memory as a device can register it."""

    bell: bool
    """Whether the scheduler must be told of what was written."""

    def register(self, device: Device, held: contextlib.ExitStack) -> dict[Region, Place]:
        """Let the peer reach the agent's parts; `held` takes what revokes it, last first."""
        ...


class HostMemory:
    """Ranges of a ring in a file of this machine's memory: one read-only region, one written."""

    bell = True

    def __init__(self, file: int, *, first_range: int, ranges: int) -> None:
        """Raises Unavailable where the file holds no such ring."""
        with mmap.mmap(file, HEADER.itemsize, prot=mmap.PROT_READ) as first:
            header = header_of(np.frombuffer(bytes(first), np.uint8))
        self._file = file
        self._parts = parts(header, first_range, ranges)

    def register(self, device: Device, held: contextlib.ExitStack) -> dict[Region, Place]:
        """Pages of the two regions are mapped side by side."""
        e = verbs().e
        read = e.IBV_ACCESS_REMOTE_READ
        write = read | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_LOCAL_WRITE
        places: dict[Region, Place] = {}
        for regions, access in ((READ_ONLY, read), (WRITTEN, write)):
            pieces = [self._parts[region] for region in regions]
            mapped = Stitched(self._file, pieces, writable=regions is WRITTEN)
            held.callback(mapped.close)
            region_of = device.register(mapped.address, mapped.length, access)
            held.callback(region_of.close)
            for region, piece, address in zip(regions, pieces, mapped.addresses, strict=True):
                places[region] = (address, piece.length, region_of.rkey)
        return places


class HostEnd:
    """What one agent may reach, by one connection after another.

    `fd` is readable when the agent has rung the bell: then call `heard`.
    """

    def __init__(self, device: Device, memory: RingMemory) -> None:
        """`device` stays open longer. Raises Unavailable."""
        self._device = device
        self._memory = memory
        self._held = contextlib.ExitStack()
        self._completions = CompletionQueue(device, 2 * _RINGS)
        self._unused = Buffer(device, mmap.PAGESIZE)  # a ring carries no bytes to a receive
        self.fd = self._completions.fd
        self._connection: Connection | None = None

    def renew(self) -> dict[str, Any]:
        """The address for a new connection; nothing lands any more over the one before.

        Raises Unavailable.
        """
        self.revoke()
        self._completions.poll()  # rings of the connection before
        with contextlib.ExitStack() as held:
            places = self._memory.register(self._device, held)
            connection = Connection(
                self._device,
                self._completions.queue,
                sends=1,
                receives=_RINGS,
                access=verbs().e.IBV_ACCESS_REMOTE_READ | verbs().e.IBV_ACCESS_REMOTE_WRITE,
            )
            # Called first: while the pair lives, nothing is taken from under it.
            held.callback(connection.destroy)
            self._await_rings(connection, _RINGS)
            self._held, self._connection = held.pop_all(), connection
        return {
            "regions": {region.name: list(place) for region, place in places.items()},
            "bell": self._memory.bell,
        }

    def connect(self, peer: Mapping[str, Any]) -> dict[str, Any]:
        """The agent's queue pair may begin; the name of this one.

        Raises Unavailable, ValueError.
        """
        if self._connection is None:
            raise ValueError("there is no address to connect by")
        self._connection.connect(peer)
        return self._connection.name()

    def heard(self) -> bool:
        """Take what has arrived; whether the bell was rung."""
        rings = len([arrived for arrived in self._completions.take() if arrived.status == 0])
        if rings and self._connection is not None:
            self._await_rings(self._connection, rings)
        return rings > 0

    def revoke(self) -> None:
        """Destroy the queue pair, then deregister the memory; nothing of the agent's lands now.

        Raises Unavailable where the device refuses: then something may land still.
        """
        self._connection = None
        with refusals_named(f"RDMA device {self._device.name!r} keeps the agent's connection"):
            self._held.close()

    def close(self) -> None:
        """Revoke, and let go. Raises Unavailable."""
        self.revoke()
        self._completions.close()

    def _await_rings(self, connection: Connection, count: int) -> None:
        v = verbs()
        with refusals_named(f"RDMA device {self._device.name!r}: no room for rings"):
            for _ in range(count):
                nothing = v.SGE(self._unused.address, 8, self._unused.key)
                connection.pair.post_recv(v.RecvWR(num_sge=1, sg=[nothing]))
