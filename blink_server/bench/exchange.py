"""One HTTP/1.1 request and its response on a connection of its own, with little work per read."""

from __future__ import annotations

import asyncio
import functools
import json
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast
from urllib.parse import urlsplit

from blink_server.errors import BlinkError

try:
    import httptools
except ImportError:
    raise BlinkError("bench needs an extra: pip install 'blink-server[bench]'") from None


class Failed(BlinkError):
    """A request failed; `kind` is what errors are counted by."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Site:
    """Where requests go: a base URL such as http://127.0.0.1:8000, and an API key or "".

    `address` is the host's, once it has been looked up.
    """

    url: str
    api_key: str = ""
    address: str = ""

    def check(self) -> None:
        """Raises BlinkError unless the URL is one of HTTP."""
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BlinkError(f"--url is {self.url!r}; it must be like http://127.0.0.1:8000")

    @property
    def port(self) -> int:
        parts = urlsplit(self.url)
        return parts.port or (443 if parts.scheme == "https" else 80)

    async def located(self) -> Site:
        """The same with the first address of its host that takes connections.

        Names are then not looked up while requests are timed. Raises Failed("connect").
        """
        loop, host = asyncio.get_running_loop(), urlsplit(self.url).hostname
        reasons = []
        try:
            found = await loop.getaddrinfo(host, self.port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise Failed("connect", f"{self.url}: {error}") from None
        for *_, address in found:
            try:
                transport, _ = await loop.create_connection(
                    asyncio.Protocol, str(address[0]), self.port
                )
            except OSError as error:
                reasons.append(str(error))
            else:
                transport.abort()
                return replace(self, address=str(address[0]))
        raise Failed("connect", f"{self.url}: {'; '.join(reasons)}")

    def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> bytes:
        """The request's bytes."""
        parts = urlsplit(self.url)
        content = b"" if body is None else json.dumps(body, ensure_ascii=False).encode()
        key = f"Authorization: Bearer {self.api_key}\r\n" if self.api_key else ""
        head = (
            f"{method} {parts.path.rstrip('/')}{path} HTTP/1.1\r\nHost: {parts.netloc}\r\n{key}"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
            "Accept: */*\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + content

    async def open(self, exchange: Exchange) -> None:
        """Connect; the exchange sends its request at once. Raises Failed("connect")."""
        parts = urlsplit(self.url)
        secure = parts.scheme == "https"
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: exchange,
                self.address or str(parts.hostname),
                self.port,
                ssl=_tls() if secure else None,
                server_hostname=parts.hostname if secure else None,
            )
        except OSError as error:
            raise Failed("connect", str(error)) from None


@functools.cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


class Exchange(asyncio.Protocol):
    """Writes a request when connected; `on_body` gets the response's body in pieces.

    `done` ends with the response, or with Failed: "http_<status>", "protocol" for what is not
    HTTP, "broken" where the connection ends before the response. Whoever awaits it closes the
    exchange.
    """

    def __init__(self, request: bytes, on_body: Callable[[bytes], None]) -> None:
        self._request = request
        self._on_body = on_body
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._refusal: list[bytes] | None = None
        self._until_closed = True
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one by its methods alone
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            self._end(error.__context__ if isinstance(error.__context__, Failed) else error)
        except httptools.HttpParserError as error:
            self._end(Failed("protocol", str(error)))

    def connection_lost(self, exc: Exception | None) -> None:
        complete = self._until_closed and exc is None and self._parser.get_status_code() >= 200
        if complete:
            self.on_message_complete()
        else:
            self._end(Failed("broken", "the connection ended before the answer"))

    def on_header(self, name: bytes, value: bytes) -> None:
        """httptools: a header."""
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._until_closed = False

    def on_headers_complete(self) -> None:
        """httptools: the head is there."""
        if self._parser.get_status_code() != 200:
            self._refusal = []

    def on_body(self, body: bytes) -> None:
        """httptools: a piece of the body."""
        if self._refusal is None:
            self._on_body(body)
        else:
            self._refusal.append(body)

    def on_message_complete(self) -> None:
        """httptools: the response is there."""
        if self._refusal is None:
            self._end(None)
        else:
            detail = b"".join(self._refusal)[:500].decode(errors="replace")
            self._end(Failed(f"http_{self._parser.get_status_code()}", detail))

    def close(self) -> None:
        """Hang up; nobody waits for `done` any more."""
        self.done.cancel()
        if self._transport is not None:
            self._transport.abort()

    def _end(self, error: BaseException | None) -> None:
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


async def ask_json(
    site: Site,
    method: str,
    path: str,
    body: Mapping[str, Any] | None = None,
    *,
    timeout_seconds: float = 60.0,
) -> Any:
    """A whole JSON answer. Raises Failed."""
    parts: list[bytes] = []
    exchange = Exchange(site.request(method, path, body), parts.append)
    try:
        async with asyncio.timeout(timeout_seconds):
            await site.open(exchange)
            await exchange.done
        return json.loads(b"".join(parts))
    except TimeoutError:
        raise Failed("timeout", f"{path}: no answer in {timeout_seconds:g} s") from None
    except ValueError as error:
        raise Failed("protocol", f"{path}: the answer is not JSON: {error}") from None
    finally:
        exchange.close()
