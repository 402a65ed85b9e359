"""Who owns which ranges of a ring: leased on a Unix socket, and taken back from who is gone.

What is done with a range's memory is the subclass's (`leases`, `gpu_runner.direct_leases`).
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blink_persistent.lines import LineSocket, listen
from blink_persistent.ring import LAYOUT_HASH
from blink_persistent.thread_names import helper_name
from blink_server.errors import BlinkError

log = logging.getLogger(__name__)

_HANDSHAKE_SECONDS = 5.0
_RECLAIM_CHECK_SECONDS = 0.1
_PEER_CREDENTIALS = struct.Struct("3i")

Answer = tuple[Mapping[str, Any], Sequence[int]]
"""Fields of an owner's grant, and the descriptors that go with it."""


@dataclass(slots=True)
class Lease:
    """A process that has ranges, or waits for them. `asked` is its first line.

    With "fenced" in that line its connection's end proves nothing, since a device may still write
    for it: its ranges are taken back once it has said "detach" or its process has ended.
    """

    link: LineSocket
    pid: int
    asked: Mapping[str, Any]
    ranges: range
    detached: bool = False


class RangeKeeper(ABC):
    """Serves leases of one ring's `ranges` from a thread of its own, which calls all methods but
    `start` and `close`."""

    def __init__(
        self, socket_path: Path, ranges: Iterable[int], *, slots_per_range: int, epoch: int
    ) -> None:
        self._ranges = frozenset(ranges)
        self._slots_per_range, self._epoch = slots_per_range, epoch
        self._free = set(self._ranges)
        self._reclaiming: set[int] = set()
        self._queue: list[Lease] = []  # they wait for ranges being reclaimed
        self._leases: list[Lease] = []
        self._dying: set[int] = set()  # processes that still have leases
        self._listener = listen(socket_path)
        self.selector = selectors.DefaultSelector()
        """Its data is called with the file object that is readable."""
        self._stop_pipe = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name=helper_name("leases"), daemon=True)

    def start(self) -> None:
        """Serve from now on."""
        self.selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self.selector.register(self._stop_pipe, selectors.EVENT_READ, None)
        self._thread.start()

    def close(self) -> None:
        """Stop serving, where it has begun; owners see the end of their connections."""
        if self._thread.ident is not None:
            os.eventfd_write(self._stop_pipe, 1)
            self._thread.join()
        self.selector.close()
        self._listener.close()
        for process in self._dying:
            os.close(process)
        for lease in self._leases:
            self._is_revoked(lease)
        for lease in (*self._leases, *self._queue):
            lease.link.close()
        os.close(self._stop_pipe)

    @abstractmethod
    def grant(self, lease: Lease) -> Answer:
        """What the owner of `lease.ranges` is told. Raises BlinkError where it cannot have them."""

    def hear(self, lease: Lease, line: Mapping[str, Any]) -> None:  # noqa: B027 (need not answer)
        """An owner has said something after the handshake; there is nothing that it must say."""

    def revoke(self, lease: Lease) -> None:  # noqa: B027 (where that is all)
        """Let nothing of the owner's land any more, where its connection's end does not do so.

        Raises BlinkError where that cannot be had.
        """

    @abstractmethod
    def begin_reclaim(self, range_: int) -> None:
        """Write cancel = release = submit for each of its slots: its owner is gone."""

    @abstractmethod
    def is_reclaimed(self, range_: int) -> bool:
        """Whether each of its slots is {submit, EMPTY}, after `begin_reclaim`."""

    def _run(self) -> None:
        while True:
            ready = self.selector.select(_RECLAIM_CHECK_SECONDS if self._reclaiming else None)
            # Who gives ranges up is heard before who asks for some.
            for key, _ in sorted(ready, key=lambda event: event[0].fileobj is self._listener):
                if key.fileobj == self._stop_pipe:
                    return
                key.data(key.fileobj)
            for range_ in [each for each in self._reclaiming if self.is_reclaimed(each)]:
                self._reclaiming.discard(range_)
                self._free.add(range_)
                log.info("range %d of the ring is free again", range_)
            self._serve_queue()

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError as error:
            log.warning("lease socket: %s", error)
            return
        connection.settimeout(_HANDSHAKE_SECONDS)
        link = LineSocket(connection)
        try:
            self._shake_hands(connection, link)
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("refused a connection to the ring: %s", error)
            link.close()

    def _shake_hands(self, connection: socket.socket, link: LineSocket) -> None:
        pid, uid, _ = _PEER_CREDENTIALS.unpack(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
        )
        if uid != os.geteuid():
            raise ValueError(f"process {pid} belongs to user {uid}")
        asked = link.first()
        mine, theirs, count = f"{LAYOUT_HASH:016x}", asked["layout_hash"], asked.get("ranges", 1)
        lease = Lease(link, pid, asked, range(int(count)))
        if theirs != mine:
            _refuse(lease, f"ring layout {mine} differs from the worker's {theirs}")
        elif (first := self._first_free(lease)) is not None:
            self._lend(lease, first)
        elif self._reclaiming and 0 < len(lease.ranges) <= len(self._ranges):
            self._queue.append(lease)
        else:
            _refuse(
                lease,
                f"{len(self._free)} of the ring's {len(self._ranges)} ranges are free, and "
                f"{count} side by side were asked for: limits.slots must be at least "
                f"{self._slots_per_range} x (workers + 1), workers elsewhere included",
            )

    def _first_free(self, lease: Lease) -> int | None:
        """The first of so many free ranges side by side."""
        count = len(lease.ranges)
        free = sorted(self._free) if count > 0 else []
        return next((r for r in free if self._free.issuperset(range(r, r + count))), None)

    def _serve_queue(self) -> None:
        while self._queue and (first := self._first_free(self._queue[0])) is not None:
            lease = self._queue.pop(0)
            try:
                self._lend(lease, first)
            except OSError as error:
                log.info("process %d did not wait for its range: %s", lease.pid, error)
                lease.link.close()

    def _lend(self, lease: Lease, first: int) -> None:
        lease.ranges = range(first, first + len(lease.ranges))
        try:
            fields, descriptors = self.grant(lease)
        except BlinkError as error:
            _refuse(lease, str(error))
            return
        answer = {"type": "attached", "range": first, "epoch": self._epoch, **fields}
        try:
            lease.link.send(answer, descriptors)
        except OSError:
            if not self._is_revoked(lease):
                self._free.difference_update(lease.ranges)
            raise
        self._free.difference_update(lease.ranges)
        self._leases.append(lease)
        self.selector.register(lease.link, selectors.EVENT_READ, lambda _: self._listen(lease))
        for range_ in lease.ranges:
            log.info("range %d of the ring leased to process %d", range_, lease.pid)

    def _listen(self, lease: Lease) -> None:
        try:
            for line in lease.link.messages():
                if line.get("type") == "detach":
                    # Not once its connection ends: it may ask for ranges anew before that is seen.
                    lease.detached = lease.link.ended = True
                else:
                    self.hear(lease, line)
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("process %d: %s", lease.pid, error)
            lease.link.ended = True
        if not lease.link.ended:
            return
        self.selector.unregister(lease.link)
        lease.link.close()
        if lease.asked.get("fenced") and not lease.detached:
            self._await_death(lease)
        else:
            self._take_back(lease)

    def _await_death(self, lease: Lease) -> None:
        """A process ends after all that it had open: also its device's connections are over."""
        try:
            process = os.pidfd_open(lease.pid)
        except ProcessLookupError:
            self._take_back(lease)
            return

        def ended(_: object) -> None:
            self.selector.unregister(process)
            self._dying.discard(process)
            os.close(process)
            self._take_back(lease)

        self._dying.add(process)
        self.selector.register(process, selectors.EVENT_READ, ended)

    def _take_back(self, lease: Lease) -> None:
        self._leases.remove(lease)
        if not self._is_revoked(lease):
            return
        for range_ in lease.ranges:
            log.info("process %d has given up range %d", lease.pid, range_)
            self.begin_reclaim(range_)
            self._reclaiming.add(range_)

    def _is_revoked(self, lease: Lease) -> bool:
        """Try it; a range in which something may still land must be nobody else's."""
        try:
            self.revoke(lease)
        except BlinkError as error:
            what = "process %d may still write to its %d ranges, which stay out of use: %s"
            log.error(what, lease.pid, len(lease.ranges), error)
            return False
        return True


def _refuse(lease: Lease, reason: str) -> None:
    lease.link.send({"type": "refused", "reason": reason})
    lease.link.close()
