"""The worker's connections on both event loops, with the loop held up by the test itself."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest
import uvloop
from gunicorn.config import Config
from gunicorn.glogging import Logger

from blink_server.connections import Connection, Worker

LIMIT_SECONDS = 30  # for what should take milliseconds
REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


async def answer_ok(scope: Any, receive: Any, send: Any) -> None:
    headers = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})


def make_worker(
    loop: asyncio.AbstractEventLoop, *, keepalive: int = 1, head: float = 1.0
) -> Worker:
    config = Config()
    config.set("keepalive", keepalive)
    worker = Worker(1, os.getppid(), [], None, LIMIT_SECONDS, config, Logger(config))
    worker.loop, worker.asgi, worker.head_seconds = loop, answer_ok, head
    return worker


class Watched(Connection):
    """Sets `waits` when it has begun to wait for a request."""

    def __init__(self, worker: Worker, waits: asyncio.Event) -> None:
        super().__init__(worker)
        self._waits = waits

    def _start_http1(self, buffered: bytes = b"") -> None:
        super()._start_http1(buffered)
        self._waits.set()

    def _arm_keepalive_timer(self) -> None:
        super()._arm_keepalive_timer()
        self._waits.set()


class Client:
    """A socket whose waits are the event loop's, and whose sends are the kernel's at once."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setblocking(False)

    def send(self, data: bytes) -> None:
        assert self._socket.send(data) == len(data)

    async def receive(self) -> bytes:
        return await asyncio.get_running_loop().sock_recv(self._socket, 65536)

    def close(self) -> None:
        self._socket.close()


@pytest.mark.parametrize("new_loop", LOOPS)
def test_what_arrived_while_the_loop_was_held_up_is_served(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def kept_alive_too_long() -> None:
        worker = make_worker(asyncio.get_running_loop())
        waits = asyncio.Event()
        server = await worker.loop.create_server(lambda: Watched(worker, waits), "127.0.0.1", 0)
        client = Client(server.sockets[0].getsockname()[1])
        await until(waits)
        client.send(REQUEST)
        for _ in range(2):
            assert (await client.receive()).startswith(b"HTTP/1.1 200 ")
            await until(waits)
            client.send(REQUEST)
            time.sleep(1.1)  # noqa: ASYNC251 (the loop is held up)
        assert (await client.receive()).startswith(b"HTTP/1.1 200 ")
        assert await client.receive() == b""  # idle for the keep-alive time
        assert worker.waiting == {}
        client.close()
        server.close()

    run(new_loop, kept_alive_too_long())


@pytest.mark.parametrize("new_loop", LOOPS)
def test_a_first_request_that_arrived_while_the_loop_was_held_up_is_served(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def silent_too_long() -> None:
        worker = make_worker(asyncio.get_running_loop(), head=0.2)
        waits = asyncio.Event()
        server = await worker.loop.create_server(lambda: Watched(worker, waits), "127.0.0.1", 0)
        client = Client(server.sockets[0].getsockname()[1])
        await until(waits)
        client.send(REQUEST)
        time.sleep(0.3)  # noqa: ASYNC251 (the loop is held up)
        assert (await client.receive()).startswith(b"HTTP/1.1 200 ")
        client.close()
        server.close()

    run(new_loop, silent_too_long())


async def until(waits: asyncio.Event) -> None:
    await waits.wait()
    waits.clear()


def run(new_loop: Callable[[], asyncio.AbstractEventLoop], test: Any) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(asyncio.wait_for(test, LIMIT_SECONDS))
