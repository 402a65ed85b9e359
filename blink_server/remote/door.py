"""The door: lets frontends of other machines in, over TLS, once they have shown their token.

A process of its own on the host, a worker in the eyes of provisioner and runners: it follows the
catalog, and leases ranges of rings for agents elsewhere. Whatever comes in through the network is
read here and nowhere else; none of it ends more than its own connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
import ssl
from dataclasses import dataclass

from blink_server.catalog import Catalog
from blink_server.control_server import Peer, first_done
from blink_server.errors import Unavailable
from blink_server.message_codec import Message, ProtocolError, decode, encode
from blink_server.messages import CatalogEntry, EndpointKey, RegisterWorker
from blink_server.remote.messages import Attach, Attached, Fetch, Hello, Refused, Say, Welcome
from blink_server.remote.sessions import Session, Sessions
from blink_server.remote.text_files import TextFiles

log = logging.getLogger(__name__)

_HELLO_SECONDS = 10.0
_LONGEST_LINE = 1 << 16  # of a frontend's
_MOST_STRANGERS = 64  # connections that have not shown their token yet


@dataclass(frozen=True, slots=True)
class Lines:
    """Both directions of one connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def read(self) -> bytes:
        """A line with its end, or b"" where there is none any more. Raises ProtocolError."""
        try:
            return await self.reader.readuntil(b"\n")
        except asyncio.IncompleteReadError:
            return b""
        except asyncio.LimitOverrunError:
            raise ProtocolError("a line is too long") from None


class Door:
    """All calls on one event loop."""

    def __init__(self, token: str, catalog: Catalog, files: TextFiles, sessions: Sessions) -> None:
        self._token = token.encode()
        self._catalog = catalog
        self._files = files
        self._sessions = sessions
        self._strangers = 0
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self, listener: socket.socket, context: ssl.SSLContext) -> None:
        """Let in who comes to this listening socket."""
        self._server = await asyncio.start_server(
            self._accept,
            sock=listener,
            ssl=context,
            ssl_handshake_timeout=_HELLO_SECONDS,
            limit=_LONGEST_LINE,
        )

    async def close(self) -> None:
        """End every connection and every session."""
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        self._sessions.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        name = "{}:{}".format(*writer.get_extra_info("peername")[:2])
        keep_alive(writer)
        try:
            await self._serve(Lines(reader, writer), name)
        except (ProtocolError, Unavailable) as error:
            log.warning("door: %s: %s; connection closed", name, error)
            with contextlib.suppress(OSError, RuntimeError):
                writer.write(encode(Refused(str(error))))
        except OSError as error:
            log.debug("door: %s: %s", name, error)
        except asyncio.CancelledError:
            pass  # only `close` cancels; asyncio would report the task as failed
        except Exception:
            log.exception("door: %s: connection closed", name)
        finally:
            writer.close()
            self._connections.discard(task)

    async def _serve(self, lines: Lines, name: str) -> None:
        hello = await self._hello(lines)
        if hello is None:
            return
        await _send(lines, Welcome())
        log.info("door: %s is %s, to %s", name, hello.frontend, hello.purpose)
        if hello.purpose == "follow":
            await self._follow(lines, hello.frontend)
        elif hello.purpose == "fetch":
            while line := await lines.read():
                part = await asyncio.to_thread(self._files.part, decode(line, (Fetch,)))
                await _send(lines, part)
        elif line := await lines.read():
            await self._attach(lines, hello.frontend, decode(line, (Attach,)))

    async def _hello(self, lines: Lines) -> Hello | None:
        """The first line of somebody with the token. Raises ProtocolError."""
        if self._strangers >= _MOST_STRANGERS:
            raise ProtocolError("too many connections without a token")
        self._strangers += 1
        try:
            line = await asyncio.wait_for(lines.read(), _HELLO_SECONDS)
        except TimeoutError:
            raise ProtocolError(f"said nothing within {_HELLO_SECONDS:g} s") from None
        finally:
            self._strangers -= 1
        if not line:
            return None
        hello = decode(line, (Hello,))
        if not secrets.compare_digest(hello.token.encode(errors="replace"), self._token):
            raise ProtocolError("the token is wrong")
        return hello

    async def _follow(self, lines: Lines, frontend: str) -> None:
        if line := await lines.read():
            peer = Peer(f"frontend {frontend}", lines.reader, lines.writer)
            await self._catalog.serve_worker(peer, decode(line, (RegisterWorker,)))

    async def _attach(self, lines: Lines, frontend: str, asked: Attach) -> None:
        while self._catalog.current is None:  # a door that has only just begun knows no endpoint
            await self._catalog.next_change()
        entry = self._entry(EndpointKey(asked.model, asked.version, asked.epoch))
        endpoint = entry.endpoint if entry is not None else None
        session = await self._sessions.attach(frontend, asked, endpoint)
        try:
            await _send(lines, Attached(session.id))
            await first_done(self._converse(lines, session), _ended(session))
        finally:
            self._sessions.leave(session)

    async def _converse(self, lines: Lines, session: Session) -> None:
        while line := await lines.read():
            answer = await session.answer(decode(line, (Say,)).body)
            if answer is None:
                self._sessions.end(session)
                return
            await _send(lines, Say(answer))

    def _entry(self, key: EndpointKey) -> CatalogEntry | None:
        update = self._catalog.current
        models = update.models if update is not None else ()
        return next((entry for entry in models if entry.key == key), None)


async def _ended(session: Session) -> None:
    await session.ended.wait()


async def _send(lines: Lines, message: Message) -> None:
    lines.writer.write(encode(message))
    await lines.writer.drain()


def keep_alive(writer: asyncio.StreamWriter) -> None:
    """Have the kernel notice within half a minute that the other machine is gone."""
    connection: socket.socket = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
