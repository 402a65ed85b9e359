"""A request's body: read within a limit, parsed as one JSON object."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import falcon.asgi

from blink_server.errors import InvalidRequest
from blink_server.http.errors import PayloadTooLarge, SlowBody
from blink_server.http.json_values import parse
from blink_server.http.settings import ServerSettings


async def read_object(
    request: falcon.asgi.Request,
    settings: ServerSettings,
    *,
    empty: bool = False,
    lenient: bool = False,
) -> dict[str, Any]:
    """The JSON object that a request carries; with `empty` a body of nothing is one without fields.

    With `lenient` it is read as JSON whatever it is called, but for a page in a browser. Raises
    `PayloadTooLarge` before reading on, `SlowBody`, `InvalidRequest` for another content type, for
    what is not JSON (NaN and Infinity are not) and for what is no object.
    """
    check_content_type(request, ["application/json"], lenient=lenient)
    try:
        content = await read_bytes(request, settings)
        body = {} if empty and not content else parse(content)
    except ValueError as error:
        raise InvalidRequest(f"the body is not JSON: {error}", code="invalid_json") from error
    if not isinstance(body, dict):
        raise InvalidRequest("the body must be a JSON object", code="invalid_json")
    return body


def check_content_type(
    request: falcon.asgi.Request, known: Sequence[str], *, lenient: bool
) -> None:
    """Raise `InvalidRequest` for a content type that is not known; none at all is the first.

    A browser asks the server (CORS) before a page sends these to another site, and sends the
    forms and texts that it does not ask for with an `Origin`: those are refused also if `lenient`.
    """
    from_page = request.get_header("Origin") is not None
    if lenient and not from_page:
        return
    given = request.content_type or ("" if from_page else known[0])
    media_type = given.partition(";")[0].strip().lower()
    if media_type not in known:
        wrong = f"the content type is {media_type!r}" if media_type else "there is no content type"
        expected = " or ".join(map(repr, known))
        code = "unsupported_content_type"
        raise InvalidRequest(f"{wrong}; it must be {expected}", code=code)


async def read_bytes(request: falcon.asgi.Request, settings: ServerSettings) -> bytes:
    """A body as it is. Raises `PayloadTooLarge` before reading on, `SlowBody`."""
    try:
        async with asyncio.timeout(settings.body_seconds):
            return await _read_within(request, settings.http.max_body_bytes)
    except TimeoutError:
        raise SlowBody(f"the body did not arrive in {settings.body_seconds:g} s") from None


async def _read_within(request: falcon.asgi.Request, most_bytes: int) -> bytes:
    chunks, size = [], request.content_length or 0
    if size <= most_bytes:
        size = 0
        async for chunk in request.stream:
            size += len(chunk)
            if size > most_bytes:
                break
            chunks.append(chunk)
    if size > most_bytes:
        raise PayloadTooLarge(f"the body is larger than {most_bytes} bytes")
    return b"".join(chunks)
