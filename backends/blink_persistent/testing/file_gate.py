"""A gate and a port for frontends on the same machine: whole frontends in tests, without RDMA.

The ring is reached through the door's own descriptors under /proc, its bell by datagrams.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import socket
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from blink_persistent.agent.attach import Offer
from blink_persistent.agent.memory_port import MemoryPort
from blink_persistent.agent.port import Bytes, PortLost, Span
from blink_persistent.frontend.shm import lease
from blink_persistent.lines import LineSocket
from blink_persistent.ring import Ring
from blink_server.backend import Endpoint
from blink_server.remote.gates import GateOptions

_LEASED = ("range", "epoch", "bytes", "type", "descriptors")

ENTRY_POINTS = """
[blink_server.frontend_gates]
file = blink_persistent.testing.file_gate:open_gate

[blink_persistent.ring_ports]
file = blink_persistent.testing.file_gate:open_port
"""


def offer_in(directory: Path) -> Path:
    """Make a directory that brings the transport `file` when it is in PYTHONPATH; returns it."""
    metadata = directory / "file_gate-1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: file-gate\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    return directory


class FileGate:
    """Fulfils `Gate`, but for fencing: what an old port has begun may still land."""

    def __init__(
        self, lent: socket.socket, answer: Mapping[str, Any], options: GateOptions
    ) -> None:
        self.lost = asyncio.Event()
        self.resources = contextlib.ExitStack()
        self._answer, self._options = answer, options
        self._memory, self._doorbell, _ = answer["descriptors"]
        self._ring = Ring(mmap.mmap(self._memory, answer["bytes"]))
        self._folder = Path(tempfile.mkdtemp(prefix="blink-gate-"))
        self._bell: socket.socket | None = None
        self._count = 0
        loop = asyncio.get_running_loop()
        loop.add_reader(lent, self._listen, lent)
        self.resources.callback(loop.remove_reader, lent)

    async def offer(self) -> Mapping[str, Any]:
        """Another bell; the port of the one before notices at once."""
        self._drop_bell()
        self._count += 1
        path = self._folder / f"bell-{self._count}"
        self._bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._bell.bind(str(path))
        self._bell.setblocking(False)
        asyncio.get_running_loop().add_reader(self._bell, self._rung)
        answer = self._answer
        return {
            "transport": "file",
            "first_range": answer["range"],
            "ranges": self._options.ranges,
            "epoch": answer["epoch"],
            "limits": {key: value for key, value in answer.items() if key not in _LEASED},
            "resumable_seconds": 30.0,
            "address": {
                "memory": f"/proc/{os.getpid()}/fd/{self._memory}",
                "bytes": answer["bytes"],
                "bell": str(path),
            },
        }

    async def connect(self, name: Mapping[str, Any]) -> Mapping[str, Any]:
        """Nothing to be said."""
        return {}

    def in_use(self) -> int:
        """Slots that are not {submit, EMPTY}."""
        return self._ring.in_flight(self._answer["range"], self._options.ranges)

    def close(self) -> None:
        """Give the ranges back."""
        self._drop_bell()
        self._folder.rmdir()
        self.resources.close()

    def _drop_bell(self) -> None:
        if self._bell is not None:
            asyncio.get_running_loop().remove_reader(self._bell)
            Path(self._bell.getsockname()).unlink()
            self._bell.close()
            self._bell = None

    def _rung(self) -> None:
        assert self._bell is not None
        self._bell.recv(16)
        os.eventfd_write(self._doorbell, 1)

    def _listen(self, lent: socket.socket) -> None:
        if not lent.recv(4096):
            asyncio.get_running_loop().remove_reader(lent)
            self.lost.set()


async def open_gate(name: str, endpoint: Endpoint, options: GateOptions) -> FileGate:
    """Lease ranges of a ring."""
    with contextlib.ExitStack() as held:
        lent, answer = await lease(name, endpoint, held, ranges=options.ranges)
        gate = FileGate(lent, answer, options)
        gate.resources.push(held.pop_all())
    return gate


class FilePort(MemoryPort):
    """Lost as soon as its bell is gone, or its door."""

    def __init__(self, address: Mapping[str, Any], *, first_range: int, ranges: int) -> None:
        with Path(address["memory"]).open("r+b") as file:
            memory = mmap.mmap(file.fileno(), address["bytes"])
        super().__init__(memory, first_range=first_range, ranges=ranges)
        self._path = address["bell"]
        self._lent = (Path(address["bell"]), Path(address["memory"]))
        self._bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def read(self, spans: Sequence[Span]) -> list[Bytes]:
        """Raises PortLost."""
        found = super().read(spans)
        if not all(path.exists() for path in self._lent):  # what was read may be another's by now
            raise PortLost("the gate has ended the connection")
        return found

    def post(self) -> None:
        """Raises PortLost."""
        try:
            self._bell.sendto(b"!", self._path)
        except OSError as error:
            raise PortLost(f"the gate has ended the connection: {error}") from None

    def close(self) -> None:
        """Let go of the memory."""
        self._bell.close()
        super().close()


def open_port(offer: Offer, _descriptors: Sequence[int], _link: LineSocket) -> FilePort:
    """By the address of `FileGate.offer`."""
    return FilePort(offer["address"], first_range=offer["first_range"], ranges=offer["ranges"])
