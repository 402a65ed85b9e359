"""Gunicorn's asgi worker, with bounds for connections on which no request is.

A connection waits from its opening, and again from the end of each answer, until a request's head
is complete. The first wait is bounded by the head timeout, later ones by gunicorn's keep-alive
time. When the worker has too many connections, and when it ends, waiting ones are given up.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import ssl
import sys
import time
from typing import Any

from gunicorn.arbiter import Arbiter
from gunicorn.asgi.protocol import ASGIProtocol
from gunicorn.workers import gasgi

from blink_server.errors import BlinkError
from blink_server.gunicorn_settings import STARTED_AGAIN_VARIABLE
from blink_server.http.scope import ScopedApp
from blink_server.http_options import HttpOptions
from blink_server.tls import FollowedCertificate

_LAST_LOOK_SECONDS = 1.0  # for a head of which a part has arrived unread
_RESTART_SECONDS = 2.0


class Connection(ASGIProtocol):  # type: ignore[misc]  # it has no types
    """One client's connection; HTTP/1, plain or over TLS."""

    worker: Worker

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self._timer: asyncio.TimerHandle | None = None
        self._looked_again = False

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Let it in, for a waiting one where the worker is full; else it gets a 503."""
        super().connection_made(transport)
        if not self.worker.make_room(self):
            retry = [("Retry-After", "1")]
            self._stop_waiting()
            self._send_error_response(503, "this worker has too many connections", retry)
            self._close_transport()

    def _start_http1(self, buffered: bytes = b"") -> None:
        self.worker.waiting[self] = None
        self._end_wait_in(self.worker.head_seconds)
        super()._start_http1(buffered)

    def _on_headers_complete(self) -> bool:
        self._stop_waiting()
        self._looked_again = False
        skip_body: bool = super()._on_headers_complete()
        return skip_body

    def _arm_keepalive_timer(self) -> None:
        self.worker.waiting[self] = None
        super()._arm_keepalive_timer()

    def _keepalive_timeout(self) -> None:
        self.end_wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol.connection_lost`."""
        self._stop_waiting()
        super().connection_lost(exc)

    def give_up(self) -> None:
        """Close a waiting connection; what is left of its last answer is sent."""
        self._stop_waiting()
        if self.transport.get_write_buffer_size():
            self._close_transport()
        else:
            self.transport.abort()  # a silent TLS client would be waited for by `close`

    def end_wait(self) -> None:
        """Close the connection if it still waits, unless something has just arrived on it.

        The timers of a loop that was held up fire before it reads what came meanwhile.
        """
        if self not in self.worker.waiting:
            return
        if self.has_unread() and not self._looked_again:
            self._looked_again = True
            self._end_wait_in(_LAST_LOOK_SECONDS)
        else:
            self.give_up()

    def has_unread(self) -> bool:
        """Whether the kernel holds bytes, or the end, that the loop has not read yet."""
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def _end_wait_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.worker.loop.call_later(seconds, self.end_wait)

    def _stop_waiting(self) -> None:
        self.worker.waiting.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Worker(gasgi.ASGIWorker):  # type: ignore[misc]  # it has no types
    """`worker_connections` is the most connections; the head timeout comes with the settings."""

    loop: asyncio.AbstractEventLoop

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.waiting: dict[Connection, None] = {}  # the longest waiting first
        http = HttpOptions.of_environment(os.environ)
        self.head_seconds = http.head_timeout_secs
        self._certificate_files = http.certificate_files
        self._tls: ssl.SSLContext | None = None

    def init_process(self) -> None:
        """Serve, until the end. What keeps one of the first workers from it ends the server.

        A later one ends alone, a little later: its siblings or, where gunicorn was started again,
        the models are there to serve. The arbiter puts another in its place at once.
        """
        try:
            if self._certificate_files is not None:
                self._tls = FollowedCertificate(self._certificate_files).context
            super().init_process()
        except (Exception, SystemExit) as error:
            if not self._ends_the_server(error) or self._is_one_of_the_first():
                raise
            if isinstance(error, SystemExit):
                self.log.error("a new worker cannot start; the reason is above")
            else:
                traceback = not isinstance(error, BlinkError)
                self.log.error("a new worker cannot start: %s", error, exc_info=traceback)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
                signal.signal(number, signal.SIG_DFL)  # there is nothing to wait for
            time.sleep(_RESTART_SECONDS)
            sys.exit(1)

    def _is_one_of_the_first(self) -> bool:
        started_again = STARTED_AGAIN_VARIABLE in os.environ
        return not started_again and bool(self.age <= self.cfg.workers)

    def _ends_the_server(self, error: BaseException) -> bool:
        """As the arbiter decides it."""
        if isinstance(error, SystemExit):
            return error.code in (Arbiter.WORKER_BOOT_ERROR, Arbiter.APP_LOAD_ERROR)
        return not self.booted

    def make_room(self, newcomer: Connection) -> bool:
        """Give up the longest waiting connection if there are too many; False if none waits."""
        if self.nr_conns <= self.worker_connections:
            return True
        for connection in self.waiting:
            if connection is not newcomer and not connection.has_unread():
                connection.give_up()
                return True
        return False

    def _get_ssl_context(self) -> ssl.SSLContext | None:
        return self._tls  # gunicorn's own serves without TLS where a file is broken

    async def _serve(self) -> None:
        gasgi.ASGIProtocol = Connection  # the class has no other door for it
        await super()._serve()

    async def _shutdown(self) -> None:
        self.head_seconds = _LAST_LOOK_SECONDS  # of those that the kernel has accepted by now
        for connection in list(self.waiting):
            connection.end_wait()
        if isinstance(self.asgi, ScopedApp):
            for callback in self.asgi.before_drain:
                callback()
        await super()._shutdown()
