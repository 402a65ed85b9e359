"""A frontend's way to the door of its host."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from typing import Literal, TypeVar

from blink_server.errors import BlinkError, Unavailable
from blink_server.message_codec import MAX_LINE, Message, ProtocolError, decode, encode
from blink_server.remote.credentials import Credentials, check_pin, frontend_context
from blink_server.remote.door import Lines, keep_alive
from blink_server.remote.messages import Hello, Refused, Welcome

_SECONDS = 10.0

M = TypeVar("M", bound=Message)


class DoorRefusedError(Unavailable):
    """The host has said no, and will say so again."""


@dataclass(frozen=True, slots=True)
class HostLink:
    """Whom to reach, as whom. Connections are made as they are needed."""

    host: str
    port: int
    credentials: Credentials
    frontend: str

    async def open(self, purpose: Literal["follow", "fetch", "attach"]) -> Lines:
        """A connection on which the host has said welcome.

        The token is sent only to the pinned certificate's owner. Raises `DoorRefusedError`, and
        `Unavailable` where the host cannot be reached or is another.
        """
        name = f"the host at {self.host}:{self.port}"
        try:
            async with asyncio.timeout(_SECONDS):
                reader, writer = await asyncio.open_connection(
                    self.host, self.port, ssl=frontend_context(), limit=MAX_LINE
                )
        except TimeoutError:
            raise Unavailable(f"{name} does not answer") from None
        except (OSError, ssl.SSLError) as error:
            raise Unavailable(f"{name}: {error}") from None
        lines = Lines(reader, writer)
        try:
            check_pin(writer.get_extra_info("ssl_object"), self.credentials)
            keep_alive(writer)
            send(lines, Hello(self.credentials.token, self.frontend, purpose))
            async with asyncio.timeout(_SECONDS):
                await expect(lines, Welcome)
        except (BlinkError, OSError, TimeoutError) as error:
            writer.close()
            if isinstance(error, Unavailable):
                raise
            raise Unavailable(f"{name}: {error}") from None
        return lines


def send(lines: Lines, message: Message) -> None:
    """Small and rare: what the other side is slow to read stays in the transport's buffer."""
    lines.writer.write(encode(message))


async def expect(lines: Lines, wanted: type[M]) -> M:
    """The next line. Raises `DoorRefusedError`, ProtocolError, and OSError at its end."""
    line = await lines.read()
    if not line:
        raise ConnectionResetError("the host has ended the connection")
    answers: tuple[type[Message], ...] = (wanted, Refused)
    message = decode(line, answers)
    if isinstance(message, Refused):
        raise DoorRefusedError(f"the host refuses: {message.reason}")
    if not isinstance(message, wanted):
        raise ProtocolError(f"unexpected message {message.TYPE!r}")
    return message
