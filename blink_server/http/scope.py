"""What belongs to one request: what is told of it in the end, and what must be undone then."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import falcon.asgi

_CLEANUP, _RECORD = "blink.cleanup", "blink.record"

Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]


@dataclass(slots=True)
class RequestRecord:
    """One HTTP request, for the access log. Nothing of a prompt or an answer belongs here.

    `key`: the beginning of the key's digest. `finish_reasons`: one a choice ("abort" where the
    client went away). `status` 0: nothing was answered.
    """

    request_id: str = ""
    status: int = 0
    key: str | None = None
    model: str | None = None
    user: str | None = None
    stream: bool = False
    prompt_tokens: int = 0
    completion_tokens: int = 0
    finish_reasons: list[str] = field(default_factory=list)
    error: str | None = None


class ScopedApp(falcon.asgi.App[falcon.asgi.Request, falcon.asgi.Response]):
    """A Falcon app whose requests have a record, and a cleanup that runs when the ASGI call ends.

    Falcon calls nothing of ours when a request is cancelled between a handler's return and the
    first read of its stream; a slot must come back there too.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.before_drain: list[Callable[[], None]] = []
        """Called once the worker takes no more connections, before it waits for those it has."""

    async def __call__(  # type: ignore[override]
        self, scope: dict[str, Any], receive: Receive, send: Send
    ) -> None:
        """One ASGI connection. Nothing is served over WebSocket: such a handshake is refused."""
        if scope["type"] == "websocket":
            await receive()  # websocket.connect
            await send({"type": "websocket.close", "code": 1008, "reason": "use HTTP"})
            return
        with ExitStack() as cleanup:
            scope[_CLEANUP], scope[_RECORD] = cleanup, RequestRecord()
            await super().__call__(scope, receive, send)


def cleanup_of(request: falcon.asgi.Request) -> ExitStack:
    """The cleanup of a request to a `ScopedApp`."""
    cleanup = request.scope[_CLEANUP]
    assert isinstance(cleanup, ExitStack)
    return cleanup


def record_of(request: falcon.asgi.Request) -> RequestRecord:
    """The record of a request to a `ScopedApp`."""
    record = request.scope[_RECORD]
    assert isinstance(record, RequestRecord)
    return record
