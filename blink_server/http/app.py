"""The ASGI application of a worker."""

from __future__ import annotations

from typing import Any

import falcon.asgi

from blink_server.console.feed import ConsoleFeed
from blink_server.console.routes import ConsoleResource
from blink_server.http.access_log import AccessLog, RequestIds
from blink_server.http.auth import ApiKeys
from blink_server.http.docs_routes import OpenApiResource
from blink_server.http.errors import error_handler
from blink_server.http.kserve_routes import add_kserve_routes
from blink_server.http.metrics import Metrics
from blink_server.http.models import ModelDirectory
from blink_server.http.router import Router
from blink_server.http.scope import ScopedApp
from blink_server.http.server_routes import (
    HealthResource,
    MetricsResource,
    ModelsResource,
    VersionResource,
)
from blink_server.http.settings import ServerSettings
from blink_server.http.text_routes import (
    ChatResource,
    CompletionsResource,
    MessagesResource,
    ResponsesResource,
)
from blink_server.http.tokenize_routes import DetokenizeResource, TokenizeResource

App = falcon.asgi.App[falcon.asgi.Request, falcon.asgi.Response]


class _CountResponses:
    """Falcon middleware: counts by route template, so that paths make no endless labels."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    async def process_response(
        self,
        req: falcon.asgi.Request,
        resp: falcon.asgi.Response,
        resource: Any,
        req_succeeded: bool,
    ) -> None:
        """Called before the response is sent."""
        route = req.uri_template or "unknown"
        method = req.method if req.method in falcon.HTTP_METHODS else "unknown"
        self._metrics.responded(method, route, resp.status_code)


def _middleware(settings: ServerSettings, metrics: Metrics) -> list[Any]:
    chain: list[Any] = [RequestIds()]
    if settings.http.access_log is not None:
        chain.append(AccessLog(settings.http.access_log))
    if origins := settings.http.origins:
        chain.append(
            falcon.CORSMiddleware(
                allow_origins="*" if "*" in origins else origins,
                expose_headers=["X-Request-Id", "Retry-After"],
            )
        )
    return [*chain, _CountResponses(metrics), ApiKeys(settings)]


def create_app(
    directory: ModelDirectory,
    settings: ServerSettings | None = None,
    *,
    metrics: Metrics | None = None,
) -> App:
    """The application that serves the models of `directory`, for one event loop.

    `metrics`: a worker's own; made here if not given, for a worker without others beside it.
    """
    settings = settings or ServerSettings()
    metrics = metrics or Metrics()
    router = Router()
    app = ScopedApp(middleware=_middleware(settings, metrics), router=router)
    for kind in (Exception, falcon.HTTPError):
        app.add_error_handler(kind, error_handler(router))
    models = ModelsResource(directory)
    health = HealthResource(directory, strict=settings.http.strict_readiness)
    app.add_route("/v1/completions", CompletionsResource(directory, settings, metrics))
    app.add_route("/v1/chat/completions", ChatResource(directory, settings, metrics))
    app.add_route("/v1/responses", ResponsesResource(directory, settings, metrics))
    app.add_route("/v1/messages", MessagesResource(directory, settings, metrics))
    app.add_route("/tokenize", TokenizeResource(directory, settings))
    app.add_route("/detokenize", DetokenizeResource(directory, settings))
    app.add_route("/v1/models", models)
    app.add_route("/v1/models/{name}", models, suffix="one")
    app.add_route("/health", health)
    app.add_route("/health/ready", health)
    app.add_route("/health/live", health, suffix="live")
    app.add_route("/version", VersionResource())
    app.add_route("/metrics", MetricsResource(metrics, directory))
    add_kserve_routes(app, directory, settings, metrics, health)
    if settings.http.console:
        _add_console(app, ConsoleFeed(directory, metrics))
    docs = OpenApiResource(settings)
    app.add_route("/openapi.json", docs)
    app.add_route("/docs", docs, suffix="page")
    return app


def _add_console(app: ScopedApp, feed: ConsoleFeed) -> None:
    console = ConsoleResource(feed)
    app.add_route("/", console, suffix="root")
    app.add_route("/console", console)
    app.add_route("/console/{file}", console, suffix="file")
    app.add_route("/console/events", console, suffix="events")
    app.before_drain.append(feed.close)  # nobody waits for those who merely watch
