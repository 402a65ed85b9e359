"""The provisioner's side of the control channel: one Unix socket for runners, workers, clients.

Only processes of the same user may connect. The first line of a connection says who it is; what is
not a message ends the connection, with the peer and the fault in the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path

from blink_server.message_codec import MAX_LINE, ProtocolError, decode, encode
from blink_server.messages import (
    REGISTRATIONS,
    Message,
    RegisterClient,
    RegisterRunner,
    RegisterWorker,
)

log = logging.getLogger(__name__)

_REGISTER_SECONDS = 10.0
_UCRED = struct.Struct("3i")  # pid, uid, gid; see socket(7), SO_PEERCRED


class Peer:
    """One registered connection."""

    def __init__(
        self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.name = name
        self._reader = reader
        self._writer = writer

    async def messages(self, allowed: Iterable[type[Message]]) -> AsyncIterator[Message]:
        """Messages until the other side closes. Raises ProtocolError."""
        while (line := await _read_line(self._reader)) is not None:
            yield decode(line, allowed)

    async def send(self, message: Message) -> None:
        """Write a message, waiting while the peer is slow. Raises ConnectionError."""
        self._writer.write(encode(message))
        await self._writer.drain()

    def close(self) -> None:
        """Close the connection; `messages` ends."""
        self._writer.close()


class ControlServer:
    """Accepts, checks and registers peers, and runs one handler for each until it goes."""

    def __init__(
        self,
        path: Path,
        *,
        on_runner: Callable[[Peer, RegisterRunner], Awaitable[None]],
        on_worker: Callable[[Peer, RegisterWorker], Awaitable[None]],
        on_client: Callable[[Peer, RegisterClient], Awaitable[None]] | None = None,
    ) -> None:
        self._path = path
        self._on_runner = on_runner
        self._on_worker = on_worker
        self._on_client = on_client
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen. A socket file that a dead predecessor has left is replaced."""
        self._path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(self._path))
        self._path.chmod(0o600)
        self._server = await asyncio.start_unix_server(self._accept, sock=listener, limit=MAX_LINE)

    async def close(self) -> None:
        """Stop listening and end every connection."""
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        self._path.unlink(missing_ok=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        pid, uid, _ = _peer_credentials(writer)
        name = f"process {pid}"
        try:
            if uid != os.geteuid():
                raise ProtocolError(f"user {uid} may not connect")
            await self._serve(reader, writer, pid)
        except ProtocolError as error:
            log.error("control channel: %s: %s; connection closed", name, error)
        except ConnectionError as error:
            log.debug("control channel: %s: %s", name, error)
        except asyncio.CancelledError:
            pass  # only `close` cancels; asyncio would report the task as failed
        finally:
            writer.close()
            self._connections.discard(task)

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pid: int
    ) -> None:
        try:
            line = await asyncio.wait_for(_read_line(reader), _REGISTER_SECONDS)
        except TimeoutError:
            raise ProtocolError(f"did not register within {_REGISTER_SECONDS:g} s") from None
        if line is None:
            return
        registration = decode(line, REGISTRATIONS)
        assert isinstance(registration, RegisterRunner | RegisterWorker | RegisterClient)
        if registration.pid != pid:
            raise ProtocolError(f"registered as process {registration.pid}")
        peer = Peer(f"{registration.role} {pid}", reader, writer)
        if isinstance(registration, RegisterRunner):
            await self._on_runner(peer, registration)
        elif isinstance(registration, RegisterWorker):
            await self._on_worker(peer, registration)
        elif self._on_client is not None:
            await self._on_client(peer, registration)


async def _read_line(reader: asyncio.StreamReader) -> bytes | None:
    try:
        return await reader.readuntil(b"\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise ProtocolError("the connection ended within a line") from None
        return None
    except asyncio.LimitOverrunError:
        raise ProtocolError(f"a line is longer than {MAX_LINE} bytes") from None


def _peer_credentials(writer: asyncio.StreamWriter) -> tuple[int, int, int]:
    connection: socket.socket = writer.get_extra_info("socket")
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, gid = _UCRED.unpack(raw)
    return pid, uid, gid


async def first_done(*work: Awaitable[None]) -> None:
    """Run all until the first has ended; cancel the others; raise what it raised."""
    tasks = [asyncio.ensure_future(item) for item in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
