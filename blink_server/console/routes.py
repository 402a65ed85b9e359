"""GET /console, the files of its page, and /console/events; / leads to the page.

The page and its files are open to everybody and say nothing; the events need an API key where keys
are set. The page sends it in a header, as every other client does, so that it is in no URL.
"""

from __future__ import annotations

from importlib.resources import files

import falcon
import falcon.asgi

from blink_server.console.feed import ConsoleFeed
from blink_server.http.errors import ErrorReply
from blink_server.http.sse import frame, respond

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_PAGE = "index.html"


class ConsoleResource:
    """The page, its files, and its feed."""

    def __init__(self, feed: ConsoleFeed) -> None:
        self._feed = feed
        static = files("blink_server.console").joinpath("static")
        self._files = {file.name: file.read_bytes() for file in static.iterdir()}

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """The page. Its own address ends with no slash, its files lie below it."""
        self._send(resp, _PAGE)

    async def on_get_root(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Where the page is."""
        resp.status = falcon.HTTP_307
        resp.location = "/console"

    async def on_get_file(
        self, req: falcon.asgi.Request, resp: falcon.asgi.Response, file: str
    ) -> None:
        """A file of the page. Raises `HTTPNotFound`."""
        if file not in self._files:
            raise falcon.HTTPNotFound
        self._send(resp, file)

    def _send(self, resp: falcon.asgi.Response, name: str) -> None:
        resp.content_type = _TYPES[name.rpartition(".")[2]]
        resp.set_headers(_HEADERS)
        resp.data = self._files[name]

    async def on_get_events(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Server-sent events: `state` is everything, `change` what to merge into it."""
        respond(resp, self._feed.viewer().events(), _failure)


def _failure(error: ErrorReply) -> bytes:
    return frame(b"{}", "bye")
