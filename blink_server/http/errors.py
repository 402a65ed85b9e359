"""The one place where errors become HTTP: status, OpenAI's error object, headers."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import falcon
import falcon.asgi

from blink_server.errors import (
    BlinkError,
    EngineFailure,
    InvalidModel,
    InvalidRequest,
    Overloaded,
    RunnerLost,
    Unavailable,
    UnknownModel,
)
from blink_server.http.router import Router
from blink_server.http.scope import record_of
from blink_server.logs import current_request_id
from blink_server.plugin_blame import of_plugin

logger = logging.getLogger(__name__)

UNAVAILABLE_RETRY_SECONDS = 1
_SHOWN = 200  # characters of what a client may write into an error

Handler = Callable[
    [falcon.asgi.Request, falcon.asgi.Response, Exception, dict[str, Any]], Awaitable[None]
]


class Unauthorized(BlinkError):
    """The API key is missing or wrong (HTTP 401)."""


class Forbidden(BlinkError):
    """Nobody may do this here (HTTP 403)."""


class NotFound(BlinkError):
    """What is asked about does not exist (HTTP 404)."""


class TooManyRequests(BlinkError):
    """The key has as many requests in progress as it may have (HTTP 429)."""


class SlowBody(BlinkError):
    """The body did not arrive in time (HTTP 408)."""


class TimeExceeded(BlinkError):
    """The answer was not finished in the time a request may take (HTTP 504)."""


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


_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def anthropic_body(reply: ErrorReply) -> bytes:
    """The same error in the shape of Anthropic's API."""
    kind = _ANTHROPIC_TYPES.get(reply.status)
    if kind is None:
        kind = "api_error" if reply.status >= 500 else "invalid_request_error"
    return json.dumps({"type": "error", "error": {"type": kind, "message": reply.message}}).encode()


def kserve_body(reply: ErrorReply) -> bytes:
    """The same error in the shape of KServe's v2 protocol."""
    return json.dumps({"error": reply.message}).encode()


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
        case NotFound():
            return ErrorReply(404, "invalid_request_error", message, "model", "model_not_found")
        case Forbidden():
            return ErrorReply(403, "invalid_request_error", message, None, "forbidden")
        case PayloadTooLarge():
            return ErrorReply(413, "invalid_request_error", message, None, "payload_too_large")
        case SlowBody():
            return ErrorReply(408, "invalid_request_error", message, None, "slow_body")
        case TooManyRequests():
            headers = {"Retry-After": "1"}
            return ErrorReply(
                429, "rate_limit_error", message, None, "rate_limit_exceeded", headers
            )
        case TimeExceeded():
            return ErrorReply(504, "server_error", message, None, "timeout")
        case Overloaded():
            return _retry_later(message, "overloaded", error.retry_after)
        case Unavailable() | InvalidModel():
            return _retry_later(message, "model_unavailable", UNAVAILABLE_RETRY_SECONDS)
        case RunnerLost():
            return _retry_later(message, "runner_lost", UNAVAILABLE_RETRY_SECONDS)
        case EngineFailure():
            return ErrorReply(500, "server_error", message, None, "engine_failure")
        case falcon.HTTPError():
            return _describe_falcon(error)
    message = f"internal server error; the server's log has more of {current_request_id.get()}"
    return ErrorReply(500, "server_error", message, None, "internal_error")


def _retry_later(message: str, code: str, seconds: float) -> ErrorReply:
    headers = {"Retry-After": str(max(1, math.ceil(seconds)))}
    return ErrorReply(503, "server_error", message, None, code, headers)


def _describe_falcon(error: falcon.HTTPError) -> ErrorReply:
    kind = "server_error" if error.status_code >= 500 else "invalid_request_error"
    message = error.description or error.title or "the request cannot be served"
    return ErrorReply(error.status_code, kind, message, headers=dict(error.headers or {}))


def _wrong_route(request: falcon.asgi.Request, allowed: str | None, router: Router) -> str:
    """What is said where no route has the path, or where it takes only the `allowed` methods."""
    method = "GET" if request.method == "HEAD" else request.method  # with the same headers
    asked = f"{method[:_SHOWN]} {request.path[:_SHOWN]}"
    if allowed is not None:
        return f"there is no {asked}; this path takes {allowed}"
    near = router.nearest(request.path)
    hint = "GET /docs shows what there is" if near is None else f"did you mean {near}?"
    return f"there is nothing at {asked}; {hint}"


def log_if_ours(error: Exception) -> None:
    """Log what the operator must know: defects with their trace, failures in one line."""
    if isinstance(error, EngineFailure):
        logger.error("request %s failed in its engine: %s", current_request_id.get(), error)
    elif not isinstance(error, (BlinkError, falcon.HTTPError)):
        request, whose = current_request_id.get(), of_plugin(error)
        logger.error("request %s met a defect%s", request, whose, exc_info=error)


def _shaped(path: str, reply: ErrorReply) -> bytes:
    if path.startswith("/v1/messages"):
        return anthropic_body(reply)
    return kserve_body(reply) if path == "/v2" or path.startswith("/v2/") else reply.body()


def error_handler(router: Router) -> Handler:
    """Falcon's error handler for every exception of every route of `router`."""

    async def handle(
        request: falcon.asgi.Request,
        response: falcon.asgi.Response,
        error: Exception,
        params: dict[str, Any],
    ) -> None:
        log_if_ours(error)
        reply = describe(error)
        if isinstance(error, falcon.HTTPNotFound | falcon.HTTPMethodNotAllowed):
            message = _wrong_route(request, reply.headers.get("Allow"), router)
            reply = replace(reply, message=message)
        record_of(request).error = reply.code
        response.status = falcon.code_to_http_status(reply.status)
        response.content_type = falcon.MEDIA_JSON
        response.data = _shaped(request.path, reply)
        # A handler may have chosen a stream before it failed.
        response.stream = None
        for name, value in reply.headers.items():
            response.set_header(name, value)

    return handle
