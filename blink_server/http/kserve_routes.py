"""The routes of KServe's v2 protocol, with Triton's extensions."""

from __future__ import annotations

from blink_server.http.kserve_models import KServeModelResource, KServeServerResource
from blink_server.http.kserve_repository import RepositoryIndexResource, RepositoryModelResource
from blink_server.http.kserve_text import GenerateResource, InferResource
from blink_server.http.metrics import Metrics
from blink_server.http.models import ModelDirectory
from blink_server.http.scope import ScopedApp
from blink_server.http.server_routes import HealthResource
from blink_server.http.settings import ServerSettings


def add_kserve_routes(
    app: ScopedApp,
    directory: ModelDirectory,
    settings: ServerSettings,
    metrics: Metrics,
    health: HealthResource,
) -> None:
    """Add everything under /v2."""
    server = KServeServerResource(directory)
    app.add_route("/v2", server)
    app.add_route("/v2/health/live", server, suffix="live")
    app.add_route("/v2/health/ready", health)
    model = KServeModelResource(directory, metrics)
    infer = InferResource(directory, settings, metrics)
    generate = GenerateResource(directory, settings, metrics)
    app.add_route("/v2/models/stats", model, suffix="stats")
    for path in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
        app.add_route(path, model)
        for suffix in ("ready", "config", "stats"):
            app.add_route(f"{path}/{suffix}", model, suffix=suffix)
        app.add_route(f"{path}/infer", infer)
        app.add_route(f"{path}/generate", generate)
        app.add_route(f"{path}/generate_stream", generate, suffix="stream")
    app.add_route("/v2/repository/index", RepositoryIndexResource(settings))
    repository = RepositoryModelResource(directory, settings)
    app.add_route("/v2/repository/models/{model}/load", repository, suffix="load")
    app.add_route("/v2/repository/models/{model}/unload", repository, suffix="unload")
