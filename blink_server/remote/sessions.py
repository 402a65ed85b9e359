"""The sessions of agents at their gates: who has which ranges, and for how long without a word."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from blink_server.backend import Endpoint
from blink_server.errors import Unavailable
from blink_server.messages import EndpointKey
from blink_server.remote.gates import Gate, GateOptions, OpenGate, load_gate
from blink_server.remote.messages import Attach

log = logging.getLogger(__name__)


class Session:
    """One agent's hold on ranges of a ring. It outlives its connection for a while."""

    def __init__(self, frontend: str, key: EndpointKey, gate: Gate) -> None:
        self.id = secrets.token_hex(16)
        self.frontend = frontend
        self.key = key
        self.gate = gate
        self.expiry: asyncio.TimerHandle | None = None
        self.ended = asyncio.Event()
        """The ranges were given back."""

    async def answer(self, said: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """What the gate says to a line of the agent's; None for a farewell. Never raises."""
        try:
            match said.get("type"):
                case "attach" | "attach again":
                    return {"type": "attached", **await self.gate.offer()}
                case "connect":
                    return {"type": "connected", "name": await self.gate.connect(said["name"])}
                case "detach":
                    return None
                case other:
                    raise ValueError(f"unexpected line {other!r}")
        except (Unavailable, ValueError, KeyError, TypeError) as error:
            return {"type": "unreachable", "reason": str(error)}


class Sessions:
    """All sessions of a door; all calls on its event loop."""

    def __init__(
        self,
        device: str,
        keep_seconds: float,
        *,
        load: Callable[[str], OpenGate] = load_gate,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """A session whose connection was lost is kept for `keep_seconds`.

        `changed` is called when one has ended.
        """
        self._device = device
        self._keep_seconds = keep_seconds
        self._load = load
        self._changed = changed
        self._sessions: dict[str, Session] = {}
        self._watches: set[asyncio.Task[None]] = set()

    async def attach(self, frontend: str, asked: Attach, endpoint: Endpoint | None) -> Session:
        """A new session at the endpoint, or the one that is asked for. Raises Unavailable."""
        if asked.session:
            return self._resumed(frontend, asked.session)
        key = EndpointKey(asked.model, asked.version, asked.epoch)
        if endpoint is None:
            raise Unavailable(f"{key} is not in service")
        # A frontend has one agent for an endpoint: an earlier one of its is dead.
        for session in [
            s for s in self._sessions.values() if (s.frontend, s.key) == (frontend, key)
        ]:
            self.end(session)
        options = GateOptions(self._device, asked.ranges, asked.layout_hash)
        gate = await self._load(asked.transport)(str(key), endpoint, options)
        session = Session(frontend, key, gate)
        self._sessions[session.id] = session
        watch = asyncio.create_task(self._watch(session))
        self._watches.add(watch)
        watch.add_done_callback(self._watches.discard)
        log.info("%s: %d ranges for %s", key, asked.ranges, frontend)
        return session

    def leave(self, session: Session) -> None:
        """Its connection is lost: end it, unless it comes back in time."""
        if session.id in self._sessions and session.expiry is None:
            loop = asyncio.get_running_loop()
            session.expiry = loop.call_later(self._keep_seconds, self.end, session)

    def end(self, session: Session) -> None:
        """Nothing of its agent's lands any more; then its ranges are given back."""
        if self._sessions.pop(session.id, None) is None:
            return
        if session.expiry is not None:
            session.expiry.cancel()
        try:
            session.gate.close()
        except Exception:
            log.exception("%s: the gate of %s cannot be closed", session.key, session.frontend)
        else:
            log.info("%s: the ranges of %s are given back", session.key, session.frontend)
        session.ended.set()
        self._changed()

    def in_use(self) -> dict[EndpointKey, int]:
        """Requests in flight at each endpoint."""
        total: dict[EndpointKey, int] = {}
        for session in self._sessions.values():
            total[session.key] = total.get(session.key, 0) + session.gate.in_use()
        return total

    def at(self, key: EndpointKey) -> bool:
        """Whether any session is at this endpoint."""
        return any(session.key == key for session in self._sessions.values())

    def close(self) -> None:
        """End all."""
        for session in list(self._sessions.values()):
            self.end(session)

    def _resumed(self, frontend: str, id_: str) -> Session:
        session = self._sessions.get(id_)
        if session is None or session.frontend != frontend:
            raise Unavailable("the ranges were taken back")
        if session.expiry is not None:
            session.expiry.cancel()
            session.expiry = None
        return session

    async def _watch(self, session: Session) -> None:
        await _first(session.gate.lost.wait(), session.ended.wait())
        self.end(session)


async def _first(*work: Awaitable[object]) -> None:
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
