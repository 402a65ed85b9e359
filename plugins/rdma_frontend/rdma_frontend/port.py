"""A ring of another machine, reached by one-sided RDMA on one reliable connection."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from blink_persistent.agent.port import (
    PADDING,
    Bytes,
    Part,
    PortLost,
    Region,
    Span,
    header_of,
    place,
)
from blink_persistent.ring import HEADER
from blink_server.errors import Unavailable
from rdma_frontend.completions import Progress
from rdma_frontend.device import Buffer, Connection, Device
from rdma_frontend.verbs import verbs

_DEPTH = 256  # work requests in the send queue
_CHAIN = 64  # posted at once; the last of each chain tells of its completion
_STAGED = 1 << 20  # bytes of writes under way
_PATIENCE_SECONDS = 15.0  # beyond what the device's own retries take

Connect = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Tells the host the name of this side's queue pair; returns that of the host's."""


class RdmaPort:
    """Fulfils `RingPort`. READs and WRITEs go in the order of the calls on one queue pair.

    One thread's, but for its own thread, which drains completions.
    """

    cheap_gap = 1 << 12  # at 200 Gb/s they take as long as a further READ among many
    longest_read = 1 << 22

    def __init__(
        self,
        device: Device,
        address: Mapping[str, Any],
        connect: Connect,
        *,
        first_range: int,
        ranges: int,
    ) -> None:
        """`address` is what `HostEnd.address` gave; `device` is closed with the port.

        Raises Unavailable where the host or the ring is another than it should be; PortLost.
        """
        self._device = device
        self._keys = {Region[name]: key for name, (_, _, key) in address["regions"].items()}
        self._parts = {
            Region[name]: Part(start, length)
            for name, (start, length, _) in address["regions"].items()
        }
        self._rings_bell = bool(address["bell"])
        self._staged = 0
        self._pending: list[Any] = []
        self._posted = 0  # the last number in the send queue
        self._resources = contextlib.ExitStack()
        self._resources.callback(device.close)
        with contextlib.ExitStack() as failed:
            failed.callback(self._resources.close)
            self._fetched = Buffer(device, self.longest_read + PADDING)
            self._staging = Buffer(device, _STAGED)
            self._progress = Progress(device, 2 * _DEPTH)
            self._resources.callback(self._progress.close)
            self._connection = Connection(
                device, self._progress.queue, sends=_DEPTH, receives=1, access=0
            )
            self._resources.callback(self._connection.destroy)
            self._connection.connect(connect(self._connection.name()))
            header = header_of(self.read([Span(Region.HEADER, 0, HEADER.itemsize)])[0])
            failed.pop_all()
        self.epoch = int(header["epoch"][0])
        self.first_range = first_range
        self.ranges = ranges
        self.all_ranges = int(header["range_count"][0])

    def read(self, spans: Sequence[Span]) -> list[Bytes]:
        """READs side by side into registered memory, posted together; waits for the last."""
        places = [place(self._parts, span.region, span.offset, span.length) for span in spans]
        starts = [0, *accumulate(-(-span.length // 8) * 8 for span in spans)]
        if starts[-1] > self.longest_read + PADDING:
            raise ValueError(f"spans of one read have at most {self.longest_read} bytes")
        for span, there, at in zip(spans, places, starts, strict=False):
            if span.length:
                here = (self._fetched.address + at, span.length, self._fetched.key)
                self._queue(verbs().e.IBV_WR_RDMA_READ, here, self._keys[span.region], there)
        self._start()
        self._wait()
        fetched = self._fetched.bytes
        return [fetched[at : at + span.length] for span, at in zip(spans, starts, strict=False)]

    def write(self, region: Region, offset: int, data: Bytes) -> None:
        """Copy into registered memory; the WRITE goes with the next `post` or `read`."""
        self._progress.check()
        start = place(self._parts, region, offset, data.nbytes)
        for first in range(0, data.nbytes, _STAGED):
            piece = data[first : first + _STAGED]
            if self._staged + piece.nbytes > _STAGED:
                self._start()
                self._wait()
            self._staging.bytes[self._staged : self._staged + piece.nbytes] = piece
            here = (self._staging.address + self._staged, piece.nbytes, self._staging.key)
            self._queue(verbs().e.IBV_WR_RDMA_WRITE, here, self._keys[region], start + first)
            self._staged += piece.nbytes

    def post(self) -> None:
        """Post all that is queued as one chain; wake the scheduler of a ring in host memory."""
        if self._rings_bell and self._pending:
            self._pending[-1].opcode = verbs().e.IBV_WR_RDMA_WRITE_WITH_IMM
        self._start()

    def close(self) -> None:
        """Wait for what is under way, as far as the connection stands, and let go.

        What a broken connection leaves on its way is fenced by the host, which destroys its end
        before it lets this agent, or another, in again.
        """
        with contextlib.suppress(PortLost):
            self._wait()
        self._resources.close()

    def _queue(self, operation: int, here: tuple[int, int, int], key: int, there: int) -> None:
        """`here`: (address, length, local key)."""
        v = verbs()
        request = v.SendWR(opcode=operation, num_sge=1, sg=[v.SGE(*here)], send_flags=0)
        request.set_wr_rdma(key, there)
        self._pending.append(request)

    def _start(self) -> None:
        """Post what is pending, in chains, never more than the queue holds."""
        v = verbs()
        self._progress.check()
        pending, self._pending = self._pending, []
        for first in range(0, len(pending), _CHAIN):
            chain = pending[first : first + _CHAIN]
            last = self._posted + len(chain)
            self._progress.wait(last - _DEPTH, _PATIENCE_SECONDS)
            chain[-1].wr_id = last
            chain[-1].send_flags = v.e.IBV_SEND_SIGNALED
            for one, following in pairwise(chain):
                one.next_wr = following
            try:
                self._connection.pair.post_send(chain[0])
            except v.PyverbsError as error:
                raise PortLost(f"RDMA device {self._device.name!r}: {error}") from error
            self._posted = last

    def _wait(self) -> None:
        self._progress.wait(self._posted, _PATIENCE_SECONDS)
        self._staged = 0


def open_port(
    address: Mapping[str, Any], connect: Connect, *, first_range: int, ranges: int
) -> RdmaPort:
    """A port by the `address` of an offer, with the name of this machine's "device" in it.

    Raises Unavailable, PortLost.
    """
    if not isinstance(name := address.get("device"), str):
        raise Unavailable(f"no RDMA device is named for the ring: {name!r}")
    return RdmaPort(Device(name), address, connect, first_range=first_range, ranges=ranges)
