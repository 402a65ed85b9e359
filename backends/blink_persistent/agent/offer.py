"""The runner's side: hands ranges of a ring to one agent at a time, by JSON lines.

    agent -> runner  {"type": "attach", "layout_hash": "<16 hex digits>"}
    runner -> agent  {"type": "attached", "transport": name, "address": {...}, "first_range": i,
                       "ranges": n, "epoch": e, "limits": {...}} with the transport's descriptors,
                      or {"type": "refused", "reason": "..."}
    runner -> agent  {"type": "flush", "number": n}: send all that workers have written by now
    agent -> runner  {"type": "flushed", "number": n}
    agent -> runner  {"type": "detach"}: nothing of mine lands in the ring any more

The connection stays open: its end tells each that the other is gone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import struct
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from blink_persistent.lines import LineSocket, listen
from blink_persistent.ring import LAYOUT_HASH
from blink_persistent.thread_names import helper_name

log = logging.getLogger(__name__)

_HANDSHAKE_SECONDS = 5.0
_PEER_CREDENTIALS = struct.Struct("3i")


class _Holder:
    """The agent that has the ranges, living or not."""

    def __init__(self, link: LineSocket, pid: int) -> None:
        self.link = link
        self.pid = pid
        self.detached = False
        self._process = os.pidfd_open(pid)

    def is_gone(self) -> bool:
        """Whether none of its words can land any more.

        The end of its connection does not say so: a dying process closes it while copies that it
        has started may still run. They are over when the process has ended altogether.
        """
        return self.detached or bool(select.select([self._process], [], [], 0)[0])

    def close(self) -> None:
        self.link.close()
        os.close(self._process)


class RingOffer:
    """Serves one offer on a Unix socket, from a thread of its own.

    An agent takes the ranges over with all that its predecessor left in them; so a second one is
    refused for as long as the first could still write.
    """

    def __init__(
        self, socket_path: Path, offer: Mapping[str, Any], descriptors: Sequence[int] = ()
    ) -> None:
        """`offer` and `descriptors` are what an agent is answered, but for the type."""
        self._offer = {"type": "attached", **offer}
        self._descriptors = list(descriptors)
        self._holder: _Holder | None = None
        self._handing_over = threading.Lock()  # who has the offer is the holder, in one step
        self._flush = 0  # the number of the last one asked for
        self._flushed = threading.Event()
        self._listener = listen(socket_path)
        self._stop = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(
            target=self._run, name=helper_name("agent offer"), daemon=True
        )

    def start(self) -> None:
        """Serve from now on."""
        self._thread.start()

    def close(self) -> None:
        """Stop serving, where it has begun; the agent sees the end of its connection."""
        if self._thread.ident is not None:
            os.eventfd_write(self._stop, 1)
            self._thread.join()
        self._listener.close()
        if self._holder is not None:
            self._holder.close()
        os.close(self._stop)

    def flush(self, seconds: float) -> bool:
        """Whether all that workers had written before the call is in the ring.

        With no living agent there is nobody who could write. False where the time ran out.
        """
        with self._handing_over:
            holder = self._holder
            if holder is None or holder.link.ended:
                return True
            self._flushed.clear()
            self._flush += 1  # an answer to an earlier one says nothing of what came after it
            with contextlib.suppress(OSError):  # its end is seen by the thread
                holder.link.send({"type": "flush", "number": self._flush})
        return self._flushed.wait(seconds)

    def _run(self) -> None:
        while True:
            waiting: list[Any] = [self._listener, self._stop]
            if self._holder is not None and not self._holder.link.ended:
                waiting.append(self._holder.link)
            readable, _, _ = select.select(waiting, [], [])
            if self._stop in readable:
                return
            if self._holder is not None and self._holder.link in readable:
                self._hear(self._holder)
            if self._listener in readable:
                self._accept()

    def _hear(self, holder: _Holder) -> None:
        try:
            for message in holder.link.messages():
                if message.get("type") == "flushed":
                    if message.get("number") == self._flush:
                        self._flushed.set()
                elif message.get("type") == "detach":
                    holder.detached = True
        except ValueError as error:
            log.warning("agent %d: %s", holder.pid, error)
            holder.link.ended = True
        if holder.link.ended:
            log.info("agent %d has left the ring", holder.pid)
            self._flushed.set()

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        connection.settimeout(_HANDSHAKE_SECONDS)
        link = LineSocket(connection)
        try:
            self._shake_hands(connection, link)
        except (OSError, ValueError, KeyError) as error:
            log.warning("refused an agent: %s", error)
            link.close()

    def _shake_hands(self, connection: socket.socket, link: LineSocket) -> None:
        pid, uid, _ = _PEER_CREDENTIALS.unpack(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
        )
        if uid != os.geteuid():
            raise ValueError(f"process {pid} belongs to user {uid}")
        mine, theirs = f"{LAYOUT_HASH:016x}", link.first()["layout_hash"]
        reason = ""
        if theirs != mine:
            reason = f"ring layout {mine} differs from the agent's {theirs}"
        elif self._holder is not None and not self._holder.is_gone():
            reason = f"agent {self._holder.pid} has its ranges"
        if reason:
            link.send({"type": "refused", "reason": reason})
            link.close()
            return
        holder = _Holder(link, pid)
        with self._handing_over:
            try:
                link.send(self._offer, self._descriptors)
            except OSError:
                holder.close()
                raise
            if self._holder is not None:
                self._holder.close()
            self._holder = holder
        log.info("ranges of the ring are with agent %d", pid)
