"""Connections that mean harm, against gunicorn's asgi worker: others are served all the same."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import pytest

ANSWER = "naïve 你好 😀 STOP the end"
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\n"
JSON = b"Content-Type: application/json\r\n"


@contextlib.contextmanager
def connections(server: Any, count: int, begin: bytes) -> Iterator[list[socket.socket]]:
    """Connections that have each sent `begin`."""
    with contextlib.ExitStack() as stack:
        opened = []
        for _ in range(count):
            address = ("127.0.0.1", server.port)
            connection = stack.enter_context(socket.create_connection(address, timeout=30))
            connection.sendall(begin)
            opened.append(connection)
        yield opened


def served(server: Any) -> bool:
    completion = server.client.completions.create(model="tiny", prompt="x", max_tokens=100)
    return bool(completion.choices[0].text == ANSWER)


@pytest.mark.parametrize(
    "begin",
    [
        b"",
        b"POST /v1/comp",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a TLS client
        HEAD + b"X-Slow: ",
        HEAD + JSON + b"Content-Length: 50\r\n\r\n",
        HEAD + JSON + b'Content-Length: 50\r\n\r\n{"model": "ti',
        HEAD + JSON + b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"mod\r\n',
    ],
)
def test_slow_senders_keep_nobody_waiting(server: Any, begin: bytes) -> None:
    with connections(server, 100, begin):
        assert served(server)


@pytest.mark.parametrize(
    "head",
    [
        b"GET\r\n\r\n",
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"X: " + b"y" * 100_000 + b"\r\n\r\n",
    ],
)
def test_what_is_no_http_is_refused(server: Any, head: bytes) -> None:
    with connections(server, 1, head) as [connection]:
        answer = connection.recv(65536)
        assert not answer or answer.split()[1].startswith(b"4")
    assert served(server)


def test_a_body_of_100_megabytes_is_refused_unread(server: Any) -> None:
    head = HEAD + JSON + b"Content-Length: 104857600\r\n\r\n" + b"{" * 1000
    with connections(server, 1, head) as [connection]:
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")
    assert served(server)


def test_a_chunked_body_without_end_is_refused(server: Any) -> None:
    chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    with connections(server, 1, HEAD + JSON + b"Transfer-Encoding: chunked\r\n\r\n") as [one]:
        # The server may close the connection before all is sent: it has answered then.
        with contextlib.suppress(ConnectionError):
            for _ in range(20):
                one.sendall(chunk)
        assert one.recv(65536).startswith(b"HTTP/1.1 413 ")
    assert served(server)
