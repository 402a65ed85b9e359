"""A ring's agent as its workers see it: the relay in a loop, and leases of the mirror's ranges."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from blink_persistent.agent.counted_port import AgentCounts, CountedPort
from blink_persistent.agent.pace import Pace
from blink_persistent.agent.port import RingPort
from blink_persistent.agent.relay import Relay
from blink_persistent.leases import LeaseKeeper

log = logging.getLogger(__name__)

_HEADER_SECONDS = 0.01


class Agent:
    """Serves the ranges of `port` to the workers of this machine, as a runner serves its ring.

    All but `close` belong to one thread and raise `PortLost`.
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

        `on_serving` is called once, when workers may connect at `socket_path`: after what an
        earlier agent had left in the ring is over.
        """
        self._pace = pace or Pace()
        self._socket_path = socket_path
        self._on_serving = on_serving
        self._header_due = 0.0
        self._doorbell = _eventfd()
        self._bells = [_eventfd() for _ in range(port.ranges)]
        self._counts = AgentCounts()
        self._relay = Relay(CountedPort(port, self._counts), self._notify)
        # A worker divides the queue by the ranges that it sees, which are the agent's only.
        queue = -(-limits["max_queue"] * port.ranges // port.all_ranges)
        self._limits = {**limits, "max_queue": queue}
        self._leases: LeaseKeeper | None = None

    def turn(self) -> float:
        """Send and fetch once; seconds after which the next turn is due at the latest."""
        now = time.monotonic()
        with_header = now >= self._header_due
        if with_header:
            self._header_due = now + _HEADER_SECONDS
        news, busy = self._relay.turn(with_header=with_header), self._relay.busy
        self._counts.agent_turns += 1
        self._counts.show(self._relay.mirror.ring)
        if self._leases is None and not busy:
            self._serve()
        return self._pace.after(news=news, busy=busy, took=time.monotonic() - now)

    def run(self, others: Sequence[int]) -> list[int]:
        """Turn until one of the descriptors `others` is readable; those that are."""
        while True:
            pause = self.turn()
            # Not epoll, which counts in whole milliseconds.
            readable, _, _ = select.select([self._doorbell, *others], [], [], pause)
            if self._doorbell in readable:
                os.eventfd_read(self._doorbell)
            heard = [fd for fd in readable if fd != self._doorbell]
            if heard:
                return heard

    def flush(self) -> None:
        """Send everything that workers have written before the call; returns when it is there."""
        self._relay.flush()

    def disconnect(self) -> None:
        """Let go of a connection that was lost; `resume` or `close` comes next.

        Workers keep what they have, and may ask for more.
        """
        self._relay.disconnect()

    def resume(self, port: RingPort) -> None:
        """Go on over a new connection to the same ring. Raises `Unavailable` for another."""
        self._relay.resume(CountedPort(port, self._counts))
        self._counts.agent_reconnections += 1

    def close(self) -> None:
        """End the workers' connections and let go of ring and mirror, in this order."""
        if self._leases is not None:
            self._leases.close()
            self._socket_path.unlink(missing_ok=True)
        try:
            self._relay.close()
        finally:
            for fd in (self._doorbell, *self._bells):
                os.close(fd)

    def _serve(self) -> None:
        """Lease the ranges, all of whose slots are {submit, EMPTY}."""
        mirror = self._relay.mirror
        self._leases = LeaseKeeper(
            mirror.ring,
            mirror.fd,
            socket_path=self._socket_path,
            doorbell=self._doorbell,
            notify=self._bells,
            limits=self._limits,
        )
        self._leases.start()
        log.info("%d ranges of the ring are served", mirror.ring.range_count)
        self._on_serving()

    def _notify(self, range_: int) -> None:
        with contextlib.suppress(BlockingIOError):  # a full counter has woken its owner already
            os.eventfd_write(self._bells[range_], 1)


def _eventfd() -> int:
    return os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
