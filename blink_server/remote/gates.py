"""Gates: the host's end of an agent's way to a ring, one kind for each transport.

A kind is an entry point of the group `blink_server.frontend_gates`, imported when it is asked for:
its name is what `--transport` says, and it leads to an `OpenGate`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Protocol, runtime_checkable

from blink_server.backend import Endpoint
from blink_server.errors import Unavailable

ENTRY_POINT_GROUP = "blink_server.frontend_gates"


@dataclass(frozen=True, slots=True)
class GateOptions:
    """What a frontend asks for; `device` is the host's, `layout_hash` its agents' of the ring."""

    device: str
    ranges: int
    layout_hash: str


class Gate(Protocol):
    """Holds ranges of a ring for one agent. All calls on the event loop; `in_use` and `close` wait
    for nothing."""

    lost: asyncio.Event
    """Set when the ring's runner is gone."""

    async def offer(self) -> Mapping[str, Any]:
        """How the agent may connect: once more, too. Over an earlier connection nothing lands any
        more when this returns. Raises Unavailable."""
        ...

    async def connect(self, name: Mapping[str, Any]) -> Mapping[str, Any]:
        """Let the agent's end of this name in; the name of this end.

        Raises Unavailable, and ValueError where it is no name.
        """
        ...

    def in_use(self) -> int:
        """Requests in flight in its ranges."""
        ...

    def close(self) -> None:
        """Give the ranges back: nobody has them before nothing of the agent's lands any more."""
        ...


OpenGate = Callable[[str, Endpoint, GateOptions], Awaitable[Gate]]
"""`await open_gate(name, endpoint, options)`: `name` is the endpoint's in messages.

Raises Unavailable where the ring cannot be reached, its ranges are taken, or layouts differ.
"""


@runtime_checkable
class RemoteBackend(Protocol):
    """A backend whose versions can be reached from another machine."""

    @property
    def ring_layout(self) -> str:
        """Of the rings that its agents can read, as they tell it their runner (`layout_hash`)."""
        ...

    def agent_command(self, runner: str, serve: str) -> list[str]:
        """The argv of an agent that attaches at the socket `runner` and serves workers at `serve`;
        it prints a JSON line of type "serving" when they may connect."""
        ...


def load_gate(transport: str) -> OpenGate:
    """Raises Unavailable, naming those that there are."""
    found = {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
    if transport not in found:
        raise Unavailable(
            f"no plugin here lets frontends in by {transport!r}; there are: "
            f"{', '.join(sorted(found)) or 'none'}"
        )
    gate: OpenGate = found[transport].load()
    return gate
