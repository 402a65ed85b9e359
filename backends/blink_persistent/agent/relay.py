"""One turn between a mirror and its ring: send what workers ask, fetch what the scheduler says."""

from __future__ import annotations

from collections.abc import Callable

from blink_persistent.agent.flights import Flights
from blink_persistent.agent.forwarder import Forwarder
from blink_persistent.agent.mirror import Mirror
from blink_persistent.agent.port import RingPort
from blink_persistent.agent.reader import AnswerReader
from blink_server.errors import Unavailable


class Relay:
    """Owns the mirror of a port's ranges. One thread; all calls raise `PortLost`.

    Whoever owned the ranges before is gone, and none of its words can land any more: the maker
    sees to that. What it has left in the ring is cancelled; `busy` is true until it is over, and
    only then may the mirror's ranges be given to anybody.
    """

    def __init__(self, port: RingPort, notify: Callable[[int], None]) -> None:
        """`notify(range)` is called when a range of the mirror has news."""
        self._port = port
        self._connected = True
        self._identity = _identity(port)
        self.mirror = Mirror(port)
        self.flights = Flights(self.mirror.ring, self.mirror.words())
        self._forwarder = Forwarder(self.mirror, port, self.flights)
        self._reader = AnswerReader(self.mirror, port, self.flights, notify)
        self._take_back()

    @property
    def busy(self) -> bool:
        """Whether a request is in flight."""
        return bool(self.flights.in_flight.any())

    def turn(self, *, with_header: bool = True) -> bool:
        """Send and fetch once, the scheduler's half of the header if asked; whether there was
        news."""
        sent = self._forwarder.forward()
        return self._reader.read(with_header=with_header) or sent

    def flush(self) -> None:
        """Send everything that workers have written before the call; returns when it is there."""
        while self._forwarder.forward():
            pass
        self._reader.read(with_header=True)  # comes after all writes

    def disconnect(self) -> None:
        """Let go of a connection that was lost; `resume` or `close` comes next."""
        self._connected = False
        self._port.close()

    def resume(self, port: RingPort) -> None:
        """Go on over a new connection to the same ring, the old one being gone for good.

        Raises `Unavailable` where it is another ring or another part of it: what is in flight then
        ends with an error, since nobody knows whether it has run.
        """
        if _identity(port) != self._identity:
            raise Unavailable("the new connection leads to another ring, or other ranges of it")
        self._port = self._forwarder.port = self._reader.port = port
        self._connected = True
        self._forwarder.send_again()

    def close(self) -> None:
        """Let go of ring and mirror. Requests in flight are left to the successor."""
        try:
            if self._connected:
                self._port.close()
        finally:
            self.mirror.close()

    def _take_back(self) -> None:
        """Ask for the end of all that an earlier owner has left in the ring."""
        atomic = self.mirror.ring.atomic
        self._reader.read(with_header=True)
        for slot in self.flights.in_flight.nonzero()[0].tolist():
            submit = atomic.submitted(slot)
            atomic.cancel(slot, submit)
            atomic.release(slot, submit)


def _identity(port: RingPort) -> tuple[int, int, int]:
    return port.epoch, port.first_range, port.ranges
