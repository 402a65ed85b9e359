"""The connection to the provisioner's catalog, of whoever follows it as a worker does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from blink_server.backoff import Backoff
from blink_server.errors import BlinkError
from blink_server.message_codec import MAX_LINE, decode, encode
from blink_server.messages import TO_WORKER, Message, RegisterWorker

log = logging.getLogger(__name__)

_FIRST_RETRY = 0.05  # seconds
_LONGEST_RETRY = 1.0


class CatalogLink:
    """Made again whenever the provisioner has gone. All calls on one event loop."""

    def __init__(
        self,
        control_socket: Path,
        register: Callable[[], RegisterWorker],
        hear: Callable[[Message], Awaitable[None]],
    ) -> None:
        """`register` gives each connection's first line; `hear` gets what the provisioner says."""
        self._control_socket = control_socket
        self._register = register
        self._hear = hear
        self._writer: asyncio.StreamWriter | None = None

    async def run(self) -> None:
        """Follow until cancelled."""
        backoff = Backoff(_FIRST_RETRY, _LONGEST_RETRY)
        while True:
            try:
                reader, self._writer = await asyncio.open_unix_connection(
                    str(self._control_socket), limit=MAX_LINE
                )
                self.send(self._register())
                while line := await reader.readline():
                    message = decode(line, TO_WORKER)
                    backoff.reset()
                    await self._hear(message)
            except (OSError, ValueError, BlinkError) as error:
                log.debug("catalog: %s", error)
            finally:
                if self._writer is not None:
                    self._writer.close()
                    self._writer = None
            await asyncio.sleep(backoff.next())

    def send(self, message: Message) -> None:
        """Tell the provisioner, if there is one."""
        # Small and rare: what the provisioner is slow to read stays in the transport's buffer.
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(encode(message))
