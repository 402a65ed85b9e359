"""JSON lines, and descriptors with them, over a Unix socket."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

_PART = 4096
_LONGEST_LINE = 1 << 16
_MOST_DESCRIPTORS = 4


class LineSocket:
    """One end of a connection. Raises ValueError for what is no JSON object on a line."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._rest = b""
        self.ended = False
        """Whether the other side has closed it, or died."""

    def fileno(self) -> int:
        """Readable when `messages` has something, or the connection has ended."""
        return self._connection.fileno()

    def send(self, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send one line, `descriptors` with it. Raises OSError."""
        line = json.dumps(message).encode() + b"\n"
        sent = socket.send_fds(self._connection, [line], list(descriptors)) if descriptors else 0
        if rest := line[sent:]:  # with nothing to send it would fail where the peer has gone
            self._connection.sendall(rest)

    def messages(self, descriptors: list[int] | None = None) -> Iterator[dict[str, Any]]:
        """The lines of one read, which waits for it, or those that `first` has left of an earlier
        one; descriptors are added to the list.

        Without a list, descriptors that come are closed.
        """
        if b"\n" not in self._rest:
            self._receive(descriptors)
        while b"\n" in self._rest:
            line, _, self._rest = self._rest.partition(b"\n")
            message = json.loads(line)
            if not isinstance(message, dict):
                raise ValueError(f"{line!r} is no JSON object")
            yield message
        if len(self._rest) > _LONGEST_LINE:
            raise ValueError("a line is too long")

    def _receive(self, descriptors: list[int] | None) -> None:
        try:
            part, received, _, _ = socket.recv_fds(self._connection, _PART, _MOST_DESCRIPTORS)
        except ConnectionError:
            part, received = b"", []
        for fd in received:
            if descriptors is None:
                os.close(fd)
            else:
                os.set_inheritable(fd, False)
                descriptors.append(fd)
        self.ended = not part
        self._rest += part

    def first(self, descriptors: list[int] | None = None) -> dict[str, Any]:
        """The first line. Raises ValueError where the connection ends before it."""
        while True:
            for message in self.messages(descriptors):
                return message
            if self.ended:
                raise ValueError("the connection ended before the first line")

    def close(self) -> None:
        """End the connection."""
        self._connection.close()


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
