"""What gunicorn runs in each worker: the HTTP application, kept true to the catalog."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blink_server.catalog_follower import CatalogFollower
from blink_server.endpoint_link import Offers
from blink_server.gunicorn_settings import (
    CONTROL_SOCKET_VARIABLE,
    LOAD_TIMEOUT_VARIABLE,
    METRICS_VARIABLE,
)
from blink_server.http.app import App, create_app
from blink_server.http.metrics import Metrics
from blink_server.http.models import ModelDirectory
from blink_server.http.plugin_routes import add_plugin_routes
from blink_server.http.server_routes import server_version
from blink_server.http.settings import ServerSettings
from blink_server.logs import configure_logging
from blink_server.plugins import load_plugins
from blink_server.text.grammar.compiler import GrammarCompiler

_CATCH_UP_SECONDS = 3.0


class FollowCatalog:
    """Falcon middleware: follows the catalog from the worker's start to its end."""

    def __init__(self, follower: CatalogFollower) -> None:
        self._follower = follower
        self._task: asyncio.Task[None] | None = None

    async def process_startup(self, scope: Mapping[str, Any], event: Mapping[str, Any]) -> None:
        """Begin to follow; what is READY now is connected before the worker takes requests."""
        self._task = asyncio.create_task(self._follower.run())
        with contextlib.suppress(TimeoutError):  # without a provisioner there is nobody to ask
            await asyncio.wait_for(self._follower.caught_up(), _CATCH_UP_SECONDS)

    async def process_shutdown(self, scope: Mapping[str, Any], event: Mapping[str, Any]) -> None:
        """After the last request: give back what the sessions hold."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._follower.close()


class ShareMetrics:
    """Falcon middleware: this worker's metrics and the others' are told together."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    async def process_startup(self, scope: Mapping[str, Any], event: Mapping[str, Any]) -> None:
        """Before the first request."""
        await self._metrics.start()

    async def process_shutdown(self, scope: Mapping[str, Any], event: Mapping[str, Any]) -> None:
        """After the last request."""
        self._metrics.close()
        if self._metrics.tracer is not None:
            await asyncio.to_thread(self._metrics.tracer.close)


class EndCompiler:
    """Falcon middleware: the process that compiles grammars ends with the worker."""

    def __init__(self, grammars: GrammarCompiler) -> None:
        self._grammars = grammars

    async def process_shutdown(self, scope: Mapping[str, Any], event: Mapping[str, Any]) -> None:
        """After the last request."""
        await self._grammars.close()


def application() -> App:
    """The application of this worker, configured by the environment that `serve` has set."""
    configure_logging()
    plugins = load_plugins()
    settings = ServerSettings.of_environment(os.environ)
    directory = ModelDirectory(GrammarCompiler(seconds=settings.http.grammar_timeout_ms / 1000))
    metrics = Metrics(Path(os.environ[METRICS_VARIABLE]))
    if settings.http.otlp_endpoint is not None:
        from blink_server.http.tracing import otlp_tracer

        metrics.tracer = otlp_tracer(settings.http.otlp_endpoint, server_version())
    metrics.on_finished = lambda request: plugins.observers.request_finished(request)
    app = create_app(directory, settings, metrics=metrics)
    app.add_middleware([ShareMetrics(metrics), EndCompiler(directory.grammars)])
    add_plugin_routes(app, plugins, directory)
    follower = CatalogFollower(
        Path(os.environ[CONTROL_SOCKET_VARIABLE]),
        directory,
        Offers(
            plugins.backends,
            plugins.tokenizers,
            plugins.tool_parsers,
            plugins.refresh,
            float(os.environ[LOAD_TIMEOUT_VARIABLE]),
        ),
    )
    app.add_middleware(FollowCatalog(follower))
    return app
