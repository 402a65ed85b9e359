"""A request's body: read within a limit, parsed as one JSON object."""

from __future__ import annotations

import asyncio
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
    any_type: bool = False,
) -> dict[str, Any]:
    """The JSON object that a request carries; with `empty` a body of nothing is one without fields.

    With `any_type` it is read as JSON whatever it is called, so that a page of another site may
    send it as a form. Raises `PayloadTooLarge` before reading on, `SlowBody`, `InvalidRequest` for
    another content type, for what is not JSON (NaN and Infinity are not) and for what is no object.
    """
    media_type = (request.content_type or "application/json").partition(";")[0].strip().lower()
    if media_type != "application/json" and not any_type:
        raise InvalidRequest(
            f"the content type is {media_type!r}; it must be 'application/json'",
            code="unsupported_content_type",
        )
    try:
        content = await read_bytes(request, settings)
        body = {} if empty and not content else parse(content)
    except ValueError as error:
        raise InvalidRequest(f"the body is not JSON: {error}", code="invalid_json") from error
    if not isinstance(body, dict):
        raise InvalidRequest("the body must be a JSON object", code="invalid_json")
    return body


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
