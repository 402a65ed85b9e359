"""Connections on which no request is, against a real worker: bounded in time and number."""

from __future__ import annotations

import contextlib
import json
import select
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

LIMIT_SECONDS = 30  # for what should take milliseconds
GET = b"GET /health/live HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture
def connect() -> Iterator[Callable[..., socket.socket]]:
    """Opens a connection to a server, and sends what is given."""
    with contextlib.ExitStack() as stack:

        def connect(server: Any, begin: bytes = b"") -> socket.socket:
            connection = socket.create_connection(("127.0.0.1", server.port), LIMIT_SECONDS)
            stack.enter_context(connection)
            connection.sendall(begin)
            return connection

        yield connect


def ended(connection: socket.socket) -> bool:
    """Wait for the server's end; True if nothing came before it."""
    try:
        return connection.recv(65536) == b""
    except ConnectionResetError:  # closed with bytes unread
        return True


def post(body: bytes) -> bytes:
    return (
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    )


def endless_stream() -> bytes:
    return post(json.dumps({"model": "endless", "prompt": "x", "stream": True}).encode())


def answered(connection: socket.socket) -> bool:
    try:
        return connection.recv(65536).startswith(b"HTTP/1.1 200 ")
    except ConnectionResetError:  # refused with the request unread
        return False


def test_an_ending_worker_waits_for_no_connection_without_a_request(
    start_server: Any, connect: Any
) -> None:
    server = start_server("--graceful-timeout", "3600", "--keep-alive", "3600")
    begun = [b"", b"", b"", b"GET /x", GET, GET + b"X-Part: "]
    waiting = [connect(server, begin) for begin in begun]
    kept = connect(server, GET + b"\r\n")
    assert answered(kept)
    server.process.send_signal(signal.SIGTERM)
    assert all(map(ended, [*waiting, kept]))
    assert server.process.wait(LIMIT_SECONDS) == 0


@pytest.mark.parametrize("begin", [b"", b"GET /x", GET, GET + b"X-Part: "])
def test_a_head_that_does_not_come_is_not_waited_for(
    start_server: Any, connect: Any, begin: bytes
) -> None:
    server = start_server("--keep-alive", "3600", head_timeout_secs=0.2)
    assert ended(connect(server, begin))


def test_a_head_that_drips_is_not_waited_for(start_server: Any, connect: Any) -> None:
    server = start_server(head_timeout_secs=0.5)
    dripping = connect(server, GET + b"X-Part: ")
    with contextlib.suppress(ConnectionError):
        for _ in range(1000):
            if select.select([dripping], [], [], 0.05)[0]:
                break
            dripping.sendall(b"x")
    assert ended(dripping)


def test_the_head_timeout_is_no_limit_for_bodies_and_answers(
    start_server: Any, connect: Any
) -> None:
    server = start_server(head_timeout_secs=0.2)
    request = post(json.dumps({"model": "tiny", "prompt": "x"}).encode())
    slow = connect(server, request[:-5])
    streaming = connect(server, endless_stream())
    assert answered(streaming)
    assert ended(connect(server))  # which is younger
    slow.sendall(request[-5:])
    assert answered(slow)
    assert not select.select([streaming], [], [], 0)[0] or streaming.recv(65536)


def test_a_further_connection_takes_the_place_of_the_longest_waiting(
    start_server: Any, connect: Any
) -> None:
    server = start_server("--worker-connections", "3", "--keep-alive", "3600")
    busy = connect(server, endless_stream())
    assert answered(busy)
    kept = connect(server, GET + b"\r\n")
    assert answered(kept)
    silent = connect(server)
    for _ in range(3):
        newcomer = connect(server, GET + b"\r\n")
        assert answered(newcomer)
        assert ended(kept)
        kept, silent = silent, newcomer
    assert not select.select([busy], [], [], 0)[0] or busy.recv(65536)


def test_where_none_waits_a_further_connection_is_refused(start_server: Any, connect: Any) -> None:
    server = start_server("--worker-connections", "2")
    busy = [connect(server, endless_stream()) for _ in range(2)]
    assert all(map(answered, busy))
    refused = connect(server)
    head = refused.recv(65536)
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"Retry-After: 1\r\n" in head
    busy[0].close()
    while not answered(connect(server, GET + b"\r\n")):
        pass  # the worker has not noticed the end of the first yet
