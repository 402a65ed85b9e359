"""HEAD answers as GET does, without a body."""

from __future__ import annotations

import http.client
from typing import Any

import falcon.inspect
import pytest

GIVEN = {"name": "tiny", "model": "tiny", "version": "1", "file": "main.js"}
OF_NOW = {"x-request-id"}


def described(headers: Any) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name not in OF_NOW}


async def test_head_is_get_without_a_body_on_every_route(worker: Any) -> None:
    worker.serve("ok")
    app = worker.client.app
    compared = 0
    for route in falcon.inspect.inspect_routes(app):
        methods = {method.method for method in route.methods}
        assert ("HEAD" in methods) == ("GET" in methods), route.path
        if "GET" not in methods or route.path in ("/console/events", "/metrics"):
            continue
        path = route.path.format(**GIVEN)
        got = await worker.get(path)
        async with worker.client as conductor:
            told = await conductor.simulate_head(path)
        assert told.status_code == got.status_code, path
        assert described(told.headers) == described(got.headers), path
        assert told.headers["content-length"] == str(len(got.content)), path
        assert told.content == b""
        compared += 1
    assert compared > 15


async def test_head_of_a_route_without_get_says_what_is_allowed(worker: Any) -> None:
    async with worker.client as conductor:
        refused = await conductor.simulate_head("/v1/completions")
    assert refused.status_code == 405
    assert refused.headers["allow"] == "POST, OPTIONS"


@pytest.mark.parametrize("path", ["/metrics", "/health/ready", "/console", "/console/events"])
def test_a_connection_serves_on_after_head(server: Any, path: str) -> None:
    with_key = {"Authorization": "Bearer secret"}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        connection.request("HEAD", path, headers=with_key)
        told = connection.getresponse()
        assert (told.status, told.read()) == (200, b"")
        assert connection.sock is not None  # it is kept
        # Were a body sent, it would be taken for the beginning of the next answer.
        connection.request("GET", "/health/live")
        assert b"live" in connection.getresponse().read()
    finally:
        connection.close()
