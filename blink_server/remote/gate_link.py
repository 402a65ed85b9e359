"""An agent's session at its gate, as its frontend keeps it: over one connection after another."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from blink_server.backoff import Backoff
from blink_server.errors import BlinkError, Unavailable
from blink_server.remote.door import Lines
from blink_server.remote.host_link import DoorRefusedError, HostLink, expect, send
from blink_server.remote.messages import Attach, Attached, Say

log = logging.getLogger(__name__)

_FIRST_RETRY = 0.1  # seconds
_LONGEST_RETRY = 2.0
_ANSWER_SECONDS = 8.0  # an agent waits for 10


class GateLink:
    """All calls on one event loop; one question at a time."""

    def __init__(self, host: HostLink, asked: Attach) -> None:
        self._host = host
        self._asked = asked
        self._lines: Lines | None = None
        self._connected = asyncio.Event()
        self._answers: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue()

    async def open(self) -> None:
        """Get the ranges, or come back to them. Raises `DoorRefusedError`, `Unavailable`."""
        lines = await self._host.open("attach")
        try:
            send(lines, self._asked)
            attached = await expect(lines, Attached)
        except (BlinkError, OSError) as error:
            lines.writer.close()
            if isinstance(error, Unavailable):
                raise
            raise Unavailable(f"the host cannot give ranges: {error}") from None
        self._asked = replace(self._asked, session=attached.session)
        self._lines = lines
        self._connected.set()

    async def keep(self) -> None:
        """Stay connected until cancelled. Raises `DoorRefusedError` once the ranges are lost."""
        backoff = Backoff(_FIRST_RETRY, _LONGEST_RETRY)
        while True:
            if self._lines is not None:
                backoff.reset()
                await self._listen(self._lines)
                self._lines.writer.close()
                self._lines = None
                self._connected.clear()
            try:
                await self.open()
            except DoorRefusedError:
                raise
            except Unavailable as error:
                log.warning("%s; trying again", error)
                await asyncio.sleep(backoff.next())

    async def ask(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """The gate's answer; of type "unreachable" where there is none."""
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                await self._connected.wait()
                assert self._lines is not None
                while not self._answers.empty():  # late ones
                    self._answers.get_nowait()
                send(self._lines, Say(body))
                return await self._answers.get()
        except (TimeoutError, OSError):
            return {"type": "unreachable", "reason": "the host's door does not answer"}

    async def close(self) -> None:
        """Give the ranges back: the agent is gone."""
        if self._lines is not None:
            send(self._lines, Say({"type": "detach"}))
            self._lines.writer.close()
            self._lines = None
            self._connected.clear()

    async def _listen(self, lines: Lines) -> None:
        try:
            while True:
                self._answers.put_nowait((await expect(lines, Say)).body)
        except (BlinkError, OSError) as error:
            log.info("the connection to the gate is lost: %s", error)
            self._answers.put_nowait({"type": "unreachable", "reason": str(error)})
