"""What must be undone at the end of a request, however it ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from typing import Any

import falcon.asgi

_KEY = "blink.cleanup"

Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]


class ScopedApp(falcon.asgi.App[falcon.asgi.Request, falcon.asgi.Response]):
    """A Falcon app whose requests have a cleanup that runs when the ASGI call ends.

    Falcon calls nothing of ours when a request is cancelled between a handler's return and the
    first read of its stream; a slot must come back there too.
    """

    async def __call__(  # type: ignore[override]
        self, scope: dict[str, Any], receive: Receive, send: Send
    ) -> None:
        """One ASGI connection."""
        with ExitStack() as cleanup:
            scope[_KEY] = cleanup
            await super().__call__(scope, receive, send)


def cleanup_of(request: falcon.asgi.Request) -> ExitStack:
    """The cleanup of a request to a `ScopedApp`."""
    cleanup = request.scope[_KEY]
    assert isinstance(cleanup, ExitStack)
    return cleanup
