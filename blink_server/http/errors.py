"""The one place where errors become HTTP: status, OpenAI's error object, headers."""

from __future__ import annotations

import json
import logging
import math
from dataclasses import dataclass, field
from typing import Any

import falcon
import falcon.asgi

from blink_server.errors import (
    BlinkError,
    EngineFailure,
    InvalidModel,
    InvalidRequest,
    Overloaded,
    Unavailable,
    UnknownModel,
)

logger = logging.getLogger(__name__)

UNAVAILABLE_RETRY_SECONDS = 1


class Unauthorized(BlinkError):
    """The API key is missing or wrong (HTTP 401)."""


class PayloadTooLarge(BlinkError):
    """The body is larger than the server's limit (HTTP 413)."""


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """What a client is told: an HTTP status and OpenAI's error object."""

    status: int
    type: str
    message: str
    param: str | None = None
    code: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def body(self) -> bytes:
        """`{"error": {"message", "type", "param", "code"}}`, as JSON."""
        error = {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.code,
        }
        return json.dumps({"error": error}).encode()


def describe(error: Exception) -> ErrorReply:
    """What a client is told of `error`; a stranger's error is told without its details."""
    message = str(error)
    match error:
        case InvalidRequest():
            return ErrorReply(400, "invalid_request_error", message, error.param, error.code)
        case Unauthorized():
            headers = {"WWW-Authenticate": "Bearer"}
            return ErrorReply(
                401, "invalid_request_error", message, None, "invalid_api_key", headers
            )
        case UnknownModel():
            return ErrorReply(404, "invalid_request_error", message, "model", "model_not_found")
        case PayloadTooLarge():
            return ErrorReply(413, "invalid_request_error", message, None, "payload_too_large")
        case Overloaded():
            return _retry_later(message, "overloaded", error.retry_after)
        case Unavailable() | InvalidModel():
            return _retry_later(message, "model_unavailable", UNAVAILABLE_RETRY_SECONDS)
        case EngineFailure():
            return ErrorReply(500, "server_error", message, None, "engine_failure")
        case falcon.HTTPError():
            return _describe_falcon(error)
    return ErrorReply(500, "server_error", "internal server error", None, "internal_error")


def _retry_later(message: str, code: str, seconds: float) -> ErrorReply:
    headers = {"Retry-After": str(max(1, math.ceil(seconds)))}
    return ErrorReply(503, "server_error", message, None, code, headers)


def _describe_falcon(error: falcon.HTTPError) -> ErrorReply:
    kind = "server_error" if error.status_code >= 500 else "invalid_request_error"
    message = error.description or error.title or "the request cannot be served"
    if isinstance(error, falcon.HTTPNotFound):
        message = "there is nothing at this path"
    elif isinstance(error, falcon.HTTPMethodNotAllowed):
        message = "this path does not take this method"
    headers = error.headers or {}
    headers = headers if isinstance(headers, dict) else dict(headers)
    return ErrorReply(error.status_code, kind, message, headers=headers)


def log_if_ours(error: Exception) -> None:
    """Log what the operator must know: defects with their trace, failures in one line."""
    if isinstance(error, EngineFailure):
        logger.error("a request failed in its engine: %s", error)
    elif not isinstance(error, (BlinkError, falcon.HTTPError)):
        logger.error("a request met a defect", exc_info=error)


async def handle_error(
    request: falcon.asgi.Request,
    response: falcon.asgi.Response,
    error: Exception,
    params: dict[str, Any],
) -> None:
    """Falcon's error handler for every exception of every route."""
    log_if_ours(error)
    reply = describe(error)
    response.status = falcon.code_to_http_status(reply.status)
    response.content_type = falcon.MEDIA_JSON
    response.data = reply.body()
    # A handler may have chosen a stream before it failed.
    response.stream = None
    for name, value in reply.headers.items():
        response.set_header(name, value)
