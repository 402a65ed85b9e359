"""One ring's agent: a turn sends what workers ask, then fetches what the scheduler answers."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from blink_persistent.agent.flights import Flights
from blink_persistent.agent.forwarder import Forwarder
from blink_persistent.agent.mirror import Mirror
from blink_persistent.agent.pace import Pace
from blink_persistent.agent.port import RingPort
from blink_persistent.agent.reader import AnswerReader
from blink_persistent.leases import LeaseKeeper
from blink_server.errors import Unavailable

log = logging.getLogger(__name__)

_HEADER_SECONDS = 0.01


class Agent:
    """Serves the ranges of `port` to the workers of this machine, as a runner serves its ring.

    `turn` and `run` belong to one thread and raise `PortLost`. Whoever owned the ranges before is
    gone, and none of its words can land any more: the maker sees to that.
    """

    def __init__(
        self,
        port: RingPort,
        socket_path: Path,
        limits: Mapping[str, Any],
        *,
        pace: Pace | None = None,
        on_serving: Callable[[], None] = lambda: None,
    ) -> None:
        """`limits` is what the runner tells owners of ranges; `max_queue` is for the whole ring.

        `on_serving` is called once, when workers may connect at `socket_path`.
        """
        self._port = port
        self._identity = (port.epoch, port.first_range, port.ranges)
        self._pace = pace or Pace()
        self._on_serving = on_serving
        self._header_due = 0.0
        self.mirror = Mirror(port)
        ring = self.mirror.ring
        self.flights = Flights(ring, self.mirror.words())
        self.doorbell = _eventfd()
        self._bells = [_eventfd() for _ in range(ring.range_count)]
        self._forwarder = Forwarder(self.mirror, port, self.flights)
        self._reader = AnswerReader(self.mirror, port, self.flights, self._notify)
        self._socket_path = socket_path
        # A worker divides the queue by the ranges that it sees, which are the agent's only.
        queue = -(-limits["max_queue"] * port.ranges // port.all_ranges)
        self._limits = {**limits, "max_queue": queue}
        self._leases: LeaseKeeper | None = None
        self._take_back()

    def turn(self) -> float:
        """Send and fetch once; seconds after which the next turn is due at the latest."""
        now = time.monotonic()
        with_header = now >= self._header_due
        if with_header:
            self._header_due = now + _HEADER_SECONDS
        sent = self._forwarder.forward()
        answered = self._reader.read(with_header=with_header)
        busy = bool(self.flights.in_flight.any())
        if self._leases is None and not busy:
            self._serve()
        return self._pace.after(news=sent or answered, busy=busy)

    def run(self, others: Sequence[int]) -> list[int]:
        """Turn until one of the descriptors `others` is readable; those that are."""
        while True:
            pause = self.turn()
            # Not epoll, which counts in whole milliseconds.
            readable, _, _ = select.select([self.doorbell, *others], [], [], pause)
            if self.doorbell in readable:
                os.eventfd_read(self.doorbell)
            heard = [fd for fd in readable if fd != self.doorbell]
            if heard:
                return heard

    def flush(self) -> None:
        """Send everything that workers have written before the call."""
        while self._forwarder.forward():
            pass

    def resume(self, port: RingPort) -> None:
        """Go on over a new connection to the same ring, the old one's last word having landed.

        Raises `Unavailable` where it is another ring or another part of it: its requests end then.
        """
        if (port.epoch, port.first_range, port.ranges) != self._identity:
            raise Unavailable("the new connection leads to another ring, or other ranges of it")
        self._port = self._forwarder.port = self._reader.port = port
        self._forwarder.send_again()

    def close(self) -> None:
        """End the workers' connections and let go of ring and mirror, in this order.

        Requests in flight are left to the successor, who cancels them.
        """
        if self._leases is not None:
            self._leases.close()
            self._socket_path.unlink(missing_ok=True)
        try:
            self._port.close()
        finally:
            self.mirror.close()
            for fd in (self.doorbell, *self._bells):
                os.close(fd)

    def _take_back(self) -> None:
        """Ask for the end of all that an earlier owner has left in the ring."""
        atomic = self.mirror.ring.atomic
        self._reader.read(with_header=True)
        for slot in self.flights.in_flight.nonzero()[0].tolist():
            submit = atomic.submitted(slot)
            atomic.cancel(slot, submit)
            atomic.release(slot, submit)

    def _serve(self) -> None:
        """Lease the ranges, all of whose slots are {submit, EMPTY}."""
        self._leases = LeaseKeeper(
            self.mirror.ring,
            self.mirror.fd,
            socket_path=self._socket_path,
            doorbell=self.doorbell,
            notify=self._bells,
            limits=self._limits,
        )
        self._leases.start()
        log.info("%d ranges of the ring are served", self.mirror.ring.range_count)
        self._on_serving()

    def _notify(self, range_: int) -> None:
        with contextlib.suppress(BlockingIOError):  # a full counter has woken its owner already
            os.eventfd_write(self._bells[range_], 1)


def _eventfd() -> int:
    return os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
