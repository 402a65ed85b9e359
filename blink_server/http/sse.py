"""Server-sent events: the one place that knows their framing, and how a stream ends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import falcon.asgi

from blink_server.http.errors import ErrorReply, describe, log_if_ours

PREFIX, SUFFIX = b"data: ", b"\n\n"
"""What stands around the payload of an event without a name."""

DONE = b"data: [DONE]\n\n"
"""OpenAI's end mark."""


def frame(payload: bytes, event: str | None = None) -> bytes:
    """One event; `payload` is JSON on one line, `event` its name where the API gives it one."""
    name = b"" if event is None else b"event: " + event.encode() + b"\n"
    return name + PREFIX + payload + SUFFIX


def respond(
    response: falcon.asgi.Response,
    frames: AsyncIterator[bytes],
    failure: Callable[[ErrorReply], bytes],
) -> None:
    """Make `frames` the body; an error in them becomes what `failure` makes of it, at the end.

    Each item is one write.
    """
    response.content_type = "text/event-stream"
    response.set_header("Cache-Control", "no-cache")
    # nginx would otherwise collect the events before it passes them on.
    response.set_header("X-Accel-Buffering", "no")
    response.stream = _guarded(frames, failure)


async def _guarded(
    frames: AsyncIterator[bytes], failure: Callable[[ErrorReply], bytes]
) -> AsyncIterator[bytes]:
    try:
        async for piece in frames:
            yield piece
    except Exception as error:
        log_if_ours(error)
        yield failure(describe(error))
