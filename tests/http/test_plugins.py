"""Plugins inside a worker: routes, observers, and what their defects do to requests."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import falcon
import falcon.asgi
import falcon.testing
import pytest

from blink_server.errors import Unavailable
from blink_server.finished_request import FinishedRequest
from blink_server.hookspecs import hookimpl
from blink_server.http.app import create_app
from blink_server.http.metrics import Metrics
from blink_server.http.models import ModelDirectory
from blink_server.http.plugin_routes import add_plugin_routes, check_plugin_routes
from blink_server.http.settings import ServerSettings, key_digest
from blink_server.plugins import PluginError, load_plugins
from blink_server.testing.fake_backend import events


class Count:
    """A route that tells how many models there are, and breaks where it is asked to."""

    def __init__(self, models: ModelDirectory) -> None:
        self._models = models

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        match req.get_param("break"):
            case "badly":
                raise ZeroDivisionError("a secret")
            case "nicely":
                raise Unavailable("not now")
        resp.media = {"models": len(self._models.entries)}


class Routes:
    def __init__(self, *paths: str) -> None:
        self._paths = paths or ("/mine/count",)

    @hookimpl
    def blink_routes(self, models: ModelDirectory) -> Mapping[str, object]:
        return {path: Count(models) for path in self._paths}


def client(*plugins: object, settings: ServerSettings | None = None) -> falcon.testing.TestClient:
    directory = ModelDirectory()
    app = create_app(directory, settings)
    extra = {f"p{number}": plugin for number, plugin in enumerate(plugins)}
    add_plugin_routes(app, load_plugins([], extra=extra), directory)
    return falcon.testing.TestClient(app)


def test_blink_routes_are_served_beside_the_server_s_own() -> None:
    found = client(Routes())
    assert found.simulate_get("/mine/count").json == {"models": 0}
    assert found.simulate_get("/health/live").status_code == 200


def test_a_plugin_s_route_asks_for_a_key_like_the_others() -> None:
    found = client(Routes(), settings=ServerSettings(api_key_digests=frozenset({key_digest("k")})))
    assert found.simulate_get("/mine/count").status_code == 401
    allowed = found.simulate_get("/mine/count", headers={"Authorization": "Bearer k"})
    assert allowed.status_code == 200


@pytest.mark.parametrize("path", ["/health", "/v1/models/{other}", "/mine/count"])
def test_two_that_want_one_path_are_both_named(path: str) -> None:
    owner = "plugin 'p0'" if path == "/mine/count" else "the server"
    with pytest.raises(PluginError, match=f"plugin 'p1' has a route .* which {owner} has already"):
        client(Routes(), Routes(path))


@pytest.mark.parametrize(
    ("routes", "message"),
    [
        (3, "not a dict by path"),
        ({"/x": object()}, "which has no on_get"),
        ({"x": Count(ModelDirectory())}, "that cannot be"),
        (ZeroDivisionError, "failed in blink_routes"),
    ],
)
def test_routes_that_cannot_be_are_refused_before_a_worker_starts(
    routes: Any, message: str
) -> None:
    class Plugin:
        @hookimpl
        def blink_routes(self) -> Any:
            if routes is ZeroDivisionError:
                raise routes
            return routes

    with pytest.raises(PluginError, match=message):
        check_plugin_routes(load_plugins([], extra={"p": Plugin()}))


def test_a_route_that_raises_is_a_500_with_an_id_and_the_plugin_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = client(Routes())
    headers = {"X-Request-Id": "req-7"}
    result = found.simulate_get("/mine/count", params={"break": "badly"}, headers=headers)
    assert result.status_code == 500
    assert "req-7" in result.json["error"]["message"]
    assert "secret" not in result.text
    assert "request req-7 met a defect of plugin 'p0'" in caplog.text
    assert "ZeroDivisionError: a secret" in caplog.text
    assert found.simulate_get("/mine/count", params={"break": "nicely"}).status_code == 503
    assert found.simulate_get("/mine/count").status_code == 200


class Watching:
    def __init__(self, *, broken: bool = False) -> None:
        self.seen: list[FinishedRequest] = []
        self._broken = broken

    @hookimpl
    def blink_request_finished(self, request: FinishedRequest) -> None:
        self.seen.append(request)
        if self._broken:
            raise ValueError("boom")


async def test_blink_request_finished_tells_everybody_all_the_times(
    worker: Any, caplog: pytest.LogCaptureFixture
) -> None:
    first, last = Watching(broken=True), Watching()
    plugins = load_plugins([], extra={"first": first, "last": last})
    worker.metrics = Metrics()
    worker.metrics.on_finished = plugins.observers.request_finished
    worker.serve(lambda request: events([50, 51, 2]))
    assert (await worker.complete()).status_code == 200
    assert first.seen == last.seen
    [finished] = last.seen
    assert (finished.outcome, finished.generated_tokens) == ("stop", 3)
    assert finished.first_token_ns is not None
    assert finished.received_ns < finished.first_token_ns <= finished.finished_ns
    assert finished.timing is not None
    assert finished.timing.claimed_ns < finished.timing.finished_ns
    assert finished.request_id
    assert "plugin first: blink_request_finished failed" in caplog.text


async def test_a_stream_that_breaks_when_cancelled_gives_its_endpoint_back(
    worker: Any, caplog: pytest.LogCaptureFixture
) -> None:
    session = worker.serve(lambda request: [RuntimeError("first")])
    submit = session.submit

    async def submit_breaking(request: Any) -> Any:
        stream = await submit(request)
        stream.cancel = lambda: 1 / 0
        return stream

    session.submit = submit_breaking
    caplog.set_level(logging.ERROR)
    assert (await worker.complete()).status_code == 500
    [entry] = worker.directory.entries
    assert worker.directory.leases(entry.key) == 0


async def test_a_session_that_cannot_tell_leaves_the_other_metrics_alone(
    worker: Any, caplog: pytest.LogCaptureFixture
) -> None:
    session = worker.serve(lambda request: events([50, 2]))
    session.stats = session.slots = lambda: 1 / 0
    assert (await worker.complete()).status_code == 200
    metrics = await worker.get("/metrics")
    assert metrics.status_code == 200
    assert 'nv_inference_request_success{model="tiny",version="1"} 1.0' in metrics.text
    assert "its session met a defect" in caplog.text


async def test_a_tokenizer_that_raises_costs_one_request_and_no_more(
    worker: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    worker.serve(lambda request: events([50, 2]))
    load_plugins([], extra={"guilty": Watching()})  # so that this module's code is its
    encode = worker.tokenizer.encode

    def broken(text: str, **options: Any) -> list[int]:
        if text == "bad":
            raise ZeroDivisionError("a secret")
        found: list[int] = encode(text, **options)
        return found

    monkeypatch.setattr(worker.tokenizer, "encode", broken)
    for prompt, status in (("good", 200), ("bad", 500), ("good", 200)):
        result = await worker.complete(prompt)
        assert result.status_code == status
        assert "secret" not in result.text
    assert "met a defect of plugin 'guilty'" in caplog.text
    assert "ZeroDivisionError: a secret" in caplog.text
