"""The console's routes: the page and its files, the feed, keys; viewers hold nothing up."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from importlib.resources import files
from typing import Any

import falcon.testing
import pytest

from blink_server.http.settings import ServerSettings, key_digest
from blink_server.http_options import HttpOptions

STATIC = files("blink_server.console").joinpath("static")
NAMES = sorted(file.name for file in STATIC.iterdir())
KEY = {"Authorization": "Bearer one"}
LIMIT_SECONDS = 30


async def test_the_page_and_its_files_are_there_without_a_key(worker: Any) -> None:
    worker.settings = ServerSettings(api_key_digests=frozenset({key_digest("one")}))
    for path in ("/console", *(f"/console/{name}" for name in NAMES)):
        result = await worker.get(path)
        assert result.status_code == 200
        policy = result.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert result.headers["x-content-type-options"] == "nosniff"
    assert (await worker.get("/console/style.css")).headers["content-type"].startswith("text/css")
    assert (await worker.get("/console/main.js")).headers["content-type"].startswith("text/javascr")


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_the_root_leads_to_the_page_without_a_key(worker: Any, method: str) -> None:
    worker.settings = ServerSettings(api_key_digests=frozenset({key_digest("one")}))
    async with worker.client as conductor:
        result = await conductor.simulate_request(method, "/")
        assert (result.status_code, result.headers["location"]) == (307, "/console")
        assert result.content == b""
        for path in ("//", "//v1/models", "/v1/models"):
            assert (await conductor.simulate_request(method, path)).status_code == 401


@pytest.mark.parametrize("name", ["nothing.js", "..%2Froutes.py", "../routes.py", "static", ""])
async def test_there_is_nothing_else(worker: Any, name: str) -> None:
    assert (await worker.get(f"/console/{name}")).status_code == 404


def test_nothing_in_the_page_is_inline_or_from_elsewhere() -> None:
    text = STATIC.joinpath("index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", text)
    for name in NAMES:
        elsewhere = re.findall(r"https?://[^\"]+|\burl\(|@import", read(name))
        assert set(elsewhere) <= {"http://www.w3.org/2000/svg"}  # a namespace, never fetched
    assert set(re.findall(r'(?:src|href)="console/([^"]+)"', text)) < set(NAMES)


def read(name: str) -> str:
    return STATIC.joinpath(name).read_text(encoding="utf-8")


@contextlib.asynccontextmanager
async def watching(worker: Any, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
    """A viewer; gives the first thing he is sent. He goes away at the end."""
    scope = falcon.testing.create_scope(path="/console/events", headers=headers)
    inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    inbox.put_nowait({"type": "http.request", "body": b"", "more_body": False})
    first: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def send(event: dict[str, Any]) -> None:
        if event["type"] == "http.response.start":
            assert event["status"] == 200, event
        elif not first.done():
            first.set_result(event["body"])

    task = asyncio.create_task(worker.client.app(scope, inbox.get, send))
    async with asyncio.timeout(LIMIT_SECONDS):
        yield await first
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_viewer_gets_the_state_in_an_event(worker: Any) -> None:
    worker.serve("ok")
    async with watching(worker, {}) as event:
        assert event.startswith(b"event: state\ndata: {")
        assert b'"tiny:1"' in event


async def test_the_feed_needs_a_key_where_keys_are_set(worker: Any) -> None:
    worker.settings = ServerSettings(api_key_digests=frozenset({key_digest("one")}))
    for headers in ({}, {"Authorization": "Bearer two"}):
        result = await worker.get("/console/events", headers=headers)
        assert result.status_code == 401
    assert (await worker.get("/console/events?key=one")).status_code == 401
    async with watching(worker, KEY) as event:
        assert event


async def test_a_viewer_is_no_request_of_his_key(worker: Any) -> None:
    digests = frozenset({key_digest("one")})
    worker.settings = ServerSettings(
        api_key_digests=digests, http=HttpOptions(max_requests_per_key=1)
    )
    worker.serve("ok")
    async with watching(worker, KEY):
        body = {"model": "tiny", "prompt": "x"}
        assert (await worker.post("/v1/completions", body, headers=KEY)).status_code == 200


async def test_no_console(worker: Any) -> None:
    worker.settings = ServerSettings(http=HttpOptions(console=False))
    for path in ("/", "/console", "/console/style.css", "/console/events"):
        assert (await worker.get(path)).status_code == 404
    described = (await worker.get("/openapi.json")).json["paths"]
    assert "/" not in described
    assert not any(path.startswith("/console") for path in described)


def test_viewers_do_not_hold_up_a_shutdown(start_server: Callable[..., Any]) -> None:
    server = start_server("--graceful-timeout", str(10 * LIMIT_SECONDS))
    with socket.create_connection(("127.0.0.1", server.port), LIMIT_SECONDS) as viewer:
        viewer.sendall(
            b"GET /console/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\n\r\n"
        )
        got = b""
        while b"event: state" not in got:
            got += viewer.recv(65536)
        server.process.terminate()
        assert server.process.wait(LIMIT_SECONDS) == 0
        while b"event: bye" not in got:
            more = viewer.recv(65536)
            assert more
            got += more
