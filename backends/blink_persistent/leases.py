"""Who owns which range of a ring: handing ranges to workers, and taking a dead owner's back.

A worker's connection to the lease socket is its lease. The kernel closes a dead process's
descriptors only after its last thread has left its memory, so the end of the connection proves
that no further word of that owner can land in the ring. Then its words pass to this keeper, which
writes cancel = release = submit for each slot, waits for {submit, EMPTY} and frees the range. The
scheduler knows nothing of it. (The keeper sits in the runner, not in the provisioner, so that
ranges are taken back also while no provisioner lives.)
"""

from __future__ import annotations

import json
import logging
import os
import selectors
import socket
import struct
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from blink_persistent.ring import LAYOUT_HASH, Ring, SlotState, unpack_status

log = logging.getLogger(__name__)

_MAX_LINE = 4096
_HANDSHAKE_SECONDS = 5.0
_RECLAIM_CHECK_SECONDS = 0.1  # beside the range's bell, in case a ring of it was lost
_PEER_CREDENTIALS = struct.Struct("3i")


@dataclass(slots=True)
class _Lease:
    ranges: range
    connection: socket.socket
    pid: int


@dataclass(slots=True)
class _Asked:
    """A process that waits for ranges."""

    connection: socket.socket
    pid: int
    ranges: int


class LeaseKeeper:
    """Serves leases of one ring on a Unix socket, from a thread of its own."""

    def __init__(
        self,
        ring: Ring,
        ring_fd: int,
        *,
        socket_path: Path,
        doorbell: int,
        notify: list[int],
        limits: Mapping[str, Any],
    ) -> None:
        """`doorbell` and `notify` (one a range) are eventfds, handed to owners with `ring_fd`.

        `limits` is what an owner must know of the version, passed on in the handshake.
        """
        self._ring = ring
        self._ring_fd = ring_fd
        self._doorbell = doorbell
        self._notify = notify
        self._limits = dict(limits)
        self._free = set(range(ring.range_count))
        self._reclaiming: set[int] = set()
        self._queue: list[_Asked] = []  # they wait for ranges being reclaimed
        self._selector = selectors.DefaultSelector()
        self._stop_pipe = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._listener = listen(socket_path)
        self._thread = threading.Thread(target=self._run, name="leases", daemon=True)

    def start(self) -> None:
        """Serve from now on."""
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._stop_pipe, selectors.EVENT_READ, None)
        self._thread.start()

    def close(self) -> None:
        """Stop serving; owners see the end of their connections."""
        os.eventfd_write(self._stop_pipe, 1)
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        for asked in self._queue:
            asked.connection.close()
        self._selector.close()
        os.close(self._stop_pipe)

    def _run(self) -> None:
        while True:
            timeout = _RECLAIM_CHECK_SECONDS if self._reclaiming else None
            ready = self._selector.select(timeout)
            # Who gives ranges up is heard before who asks for some.
            for key, _ in sorted(ready, key=lambda event: event[0].fileobj is self._listener):
                if key.fileobj == self._stop_pipe:
                    return
                key.data(key.fileobj)
            for range_index in list(self._reclaiming):
                self._finish_reclaim(range_index)

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError as error:
            log.warning("lease socket: %s", error)
            return
        connection.settimeout(_HANDSHAKE_SECONDS)
        try:
            self._shake_hands(connection)
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("refused a connection to the ring: %s", error)
            connection.close()

    def _shake_hands(self, connection: socket.socket) -> None:
        pid, uid, _ = _PEER_CREDENTIALS.unpack(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
        )
        if uid != os.geteuid():
            raise ValueError(f"process {pid} belongs to user {uid}")
        request = json.loads(_read_line(connection))
        mine, theirs = f"{LAYOUT_HASH:016x}", request["layout_hash"]
        asked = _Asked(connection, pid, int(request.get("ranges", 1)))
        first = self._first_free(asked.ranges)
        if theirs != mine:
            self._refuse(connection, f"ring layout {mine} differs from the worker's {theirs}")
        elif first is not None:
            self._grant(asked, first)
        elif self._reclaiming and 0 < asked.ranges <= self._ring.range_count:
            self._queue.append(asked)
        else:
            self._refuse(
                connection,
                f"{len(self._free)} of the ring's {self._ring.range_count} ranges are free, and "
                f"{asked.ranges} side by side were asked for: limits.slots must be at least "
                f"{self._ring.slots_per_range} x (workers + 1), workers elsewhere included",
            )

    def _first_free(self, count: int) -> int | None:
        """The first of so many free ranges side by side."""
        free = sorted(self._free) if count > 0 else []
        return next((r for r in free if self._free.issuperset(range(r, r + count))), None)

    def _refuse(self, connection: socket.socket, reason: str) -> None:
        connection.sendall(json.dumps({"type": "refused", "reason": reason}).encode() + b"\n")
        connection.close()

    def _grant(self, asked: _Asked, first: int) -> None:
        lease = _Lease(range(first, first + asked.ranges), asked.connection, asked.pid)
        answer = {
            "type": "attached",
            "range": first,
            "epoch": self._ring.epoch,
            "bytes": self._ring.field("total_bytes"),
            **self._limits,
        }
        fds = [self._ring_fd, self._doorbell, self._notify[first]]
        socket.send_fds(asked.connection, [json.dumps(answer).encode() + b"\n"], fds)
        asked.connection.setblocking(False)
        self._free.difference_update(lease.ranges)
        self._selector.register(asked.connection, selectors.EVENT_READ, lambda _: self._hear(lease))
        for range_index in lease.ranges:
            log.info("range %d of the ring leased to process %d", range_index, asked.pid)

    def _hear(self, lease: _Lease) -> None:
        try:
            if lease.connection.recv(_MAX_LINE):
                return  # an owner has nothing to say after the handshake
        except BlockingIOError:
            return
        except OSError:
            pass  # reset: as gone as an orderly end
        self._selector.unregister(lease.connection)
        lease.connection.close()
        for range_index in lease.ranges:
            self._begin_reclaim(range_index, lease.pid)

    def _slots(self, range_index: int) -> range:
        first = range_index * self._ring.slots_per_range
        return range(first, first + self._ring.slots_per_range)

    def _begin_reclaim(self, range_index: int, pid: int) -> None:
        atomic, busy = self._ring.atomic, 0
        for slot in self._slots(range_index):
            submit = atomic.submitted(slot)
            if submit == 0 or self._is_empty(slot, submit):
                continue
            busy += 1
            atomic.cancel(slot, submit)
            atomic.release(slot, submit)
        log.info("process %d gave up range %d with %d slots in use", pid, range_index, busy)
        self._reclaiming.add(range_index)
        bell = self._notify[range_index]
        self._selector.register(bell, selectors.EVENT_READ, _silence)
        os.eventfd_write(self._doorbell, 1)

    def _finish_reclaim(self, range_index: int) -> None:
        slots = self._slots(range_index)
        status = np.empty((len(slots), 2), np.uint64)
        self._ring.atomic.read_statuses(slots.start, status)
        words = status[:, 1] >> np.uint64(32) & np.uint64(0xFF)
        if (words != SlotState.EMPTY).any():
            return
        submitted = self._ring.atomic.submitted
        if any(int(status[i, 0]) & 0xFFFFFFFF != submitted(slot) for i, slot in enumerate(slots)):
            return
        self._reclaiming.discard(range_index)
        self._selector.unregister(self._notify[range_index])
        self._free.add(range_index)
        log.info("range %d of the ring is free again", range_index)
        while self._queue:
            first = self._first_free(self._queue[0].ranges)
            if first is None:
                return
            asked = self._queue.pop(0)
            try:
                self._grant(asked, first)
            except OSError as error:
                log.info("process %d did not wait for its range: %s", asked.pid, error)
                asked.connection.close()

    def _is_empty(self, slot: int, submit: int) -> bool:
        ticket, _, word = self._ring.atomic.status(slot)
        return bool(ticket == submit and unpack_status(word)[1] is SlotState.EMPTY)


def _silence(bell: int) -> None:
    os.eventfd_read(bell)


def listen(path: Path) -> socket.socket:
    """A listening Unix socket for this user alone. Raises OSError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen()
    except OSError:
        listener.close()
        raise
    return listener


def _read_line(connection: socket.socket) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        part = connection.recv(_MAX_LINE - len(line))
        if not part:
            raise ValueError("the connection ended within its first line")
        line += part
        if len(line) == _MAX_LINE:
            raise ValueError("the first line is too long")
    return line
