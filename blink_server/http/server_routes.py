"""What is told of the server itself: models, health, version, metrics."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import falcon
import falcon.asgi

from blink_server.errors import Unavailable
from blink_server.http.exposition import expose
from blink_server.http.metrics import Metrics
from blink_server.http.model_entry import ModelEntry, ServerState, why_not_ready
from blink_server.http.model_metrics import model_families
from blink_server.http.models import ModelDirectory
from blink_server.http.scheduler_metrics import scheduler_families
from blink_server.repository.harness import State


def _reply(resp: falcon.asgi.Response, body: dict[str, Any], status: int = 200) -> None:
    resp.status = falcon.code_to_http_status(status)
    resp.content_type = falcon.MEDIA_JSON
    resp.data = json.dumps(body).encode()


def _card(name: str, entry: ModelEntry) -> dict[str, Any]:
    session = entry.session
    return {
        "id": name,
        "object": "model",
        "created": entry.created,
        "owned_by": "blink-server",
        "version": entry.version.version,
        "max_model_len": session.limits.context_length if session is not None else None,
    }


class ModelsResource:
    """GET /v1/models and /v1/models/{name}: what may be asked for now."""

    def __init__(self, directory: ModelDirectory) -> None:
        self._directory = directory

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Every model that serves, by the name that gives its highest version, and its aliases."""
        serving: dict[str, ModelEntry] = {}
        for entry in self._directory.entries:
            for name in (entry.version.model, *entry.aliases):
                found = self._directory.find(name)
                if found.serves:
                    serving[name] = found
        cards = [_card(name, entry) for name, entry in serving.items()]
        _reply(resp, {"object": "list", "data": cards})

    async def on_get_one(
        self, req: falcon.asgi.Request, resp: falcon.asgi.Response, name: str
    ) -> None:
        """One model or version ("name:3"). Raises `UnknownModel`, `Unavailable`."""
        entry = self._directory.find(name)
        if not entry.serves:
            raise Unavailable(f"the model {name!r} is {why_not_ready(entry)}")
        _reply(resp, _card(name, entry))


class HealthResource:
    """GET /health/live, /health/ready and /health."""

    def __init__(self, directory: ModelDirectory, *, strict: bool = False) -> None:
        """`strict`: the server is ready only while every model is."""
        self._directory = directory
        self._strict = strict

    async def on_get_live(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """200 while this process answers at all."""
        _reply(resp, {"status": "live"})

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """200 when the server takes requests and serves a model, or ?model=NAME; else 503.

        A model that loads beside others that serve does not make the server unready.
        """
        name = req.get_param("model")
        reason = self._why_not_ready() if name is None else self._why_not(name)
        if reason is None:
            _reply(resp, {"status": "ready"})
        else:
            _reply(resp, {"status": "not ready", "reason": reason}, 503)

    def _why_not(self, name: str) -> str | None:
        entry = self._directory.find(name)
        if self._directory.server is ServerState.DRAINING:
            return "the server is shutting down"
        return None if entry.serves else f"the model {name!r} is {why_not_ready(entry)}"

    def _why_not_ready(self) -> str | None:
        entries = self._directory.entries
        match self._directory.server:
            case ServerState.STARTING:
                loading = [entry.version.key for entry in entries if entry.state is State.LOADING]
                return f"the server is starting: {', '.join(loading) or 'no models yet'}"
            case ServerState.DRAINING:
                return "the server is shutting down"
        waiting = [entry for entry in entries if not entry.serves]
        if not waiting or (len(waiting) < len(entries) and not self._strict):
            return None
        return "; ".join(f"{entry.version.key} is {why_not_ready(entry)}" for entry in waiting)


def server_version() -> str:
    """The version of the installed server."""
    try:
        return version("blink-server")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "0+unknown"


class VersionResource:
    """GET /version."""

    def __init__(self) -> None:
        self._version = server_version()

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """The server's version."""
        _reply(resp, {"version": self._version})


class MetricsResource:
    """GET /metrics, for Prometheus."""

    def __init__(self, metrics: Metrics, directory: ModelDirectory) -> None:
        self._metrics = metrics
        self._directory = directory

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """The values of all workers together, the versions' and the schedulers'.

        In OpenMetrics form, with exemplars, for those who accept it, else in Prometheus's.
        """
        families = [
            *await self._metrics.families(),
            *model_families(self._directory),
            *scheduler_families(self._directory),
        ]
        resp.data, resp.content_type = expose(families, req.get_header("Accept") or "")
