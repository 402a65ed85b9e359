"""Server-sent events: the one place that knows their framing, and how a stream ends."""

from __future__ import annotations

from collections.abc import AsyncIterator

from blink_server.http.errors import describe, log_if_ours

CONTENT_TYPE = "text/event-stream"
DONE = b"data: [DONE]\n\n"


def frame(payload: bytes) -> bytes:
    """One event; `payload` is JSON on one line."""
    return b"data: " + payload + b"\n\n"


async def event_stream(frames: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """A response body: `frames`, or what came of them before an error, and the end mark.

    An error becomes a last event in the shape of OpenAI's errors. Each item is one write.
    """
    try:
        async for piece in frames:
            yield piece
    except Exception as error:
        log_if_ours(error)
        yield frame(describe(error).body())
    yield DONE
