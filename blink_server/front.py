"""Gunicorn as a child of the provisioner: started at once, started again when killed."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys

from blink_server.backoff import Backoff
from blink_server.errors import BlinkError
from blink_server.front_options import FrontOptions
from blink_server.gunicorn_settings import (
    API_KEY_FILE_VARIABLE,
    CONTROL_SOCKET_VARIABLE,
    EXIT_TIMEOUT_VARIABLE,
    METRICS_VARIABLE,
    STARTED_AGAIN_VARIABLE,
)
from blink_server.listener import bind_listener
from blink_server.process import Process
from blink_server.runtime_dir import RuntimeDirectory, read_record, write_record

log = logging.getLogger(__name__)

_FIRST_RETRY = 1.0  # seconds
_LONGEST_RETRY = 60.0
_ORPHAN_GRACE = 5.0
_ARBITER_GRACE = 10.0  # beyond the exit timeout: its own 5 s and the workers' last second


class Front:
    """The listening socket and gunicorn; all calls on the provisioner's event loop."""

    def __init__(self, options: FrontOptions, runtime: RuntimeDirectory) -> None:
        self.options = options
        self._runtime = runtime
        self._listener: socket.socket | None = None
        self._process: Process | None = None
        self._killed: list[Process] = []  # gunicorns that died; their workers end their streams
        self._started_before = False  # by this process or by its predecessor
        self._closing = False

    @property
    def address(self) -> tuple[str, int]:
        """Host as asked for, and the port that is listened on."""
        return self.options.host, self._port

    @property
    def needs_key(self) -> bool:
        """Whether requests need an API key."""
        return self.options.api_key_file is not None

    def claim(self) -> None:
        """Take over the front that a dead predecessor has left, or bind the listening socket.

        Raises BlinkError naming host and port; nothing is started then.
        """
        found = read_record(self._runtime.http_record)
        if found is None:
            self._bind(self.options.port)
            return
        identity, facts = found
        self._port = int(facts.pop("listening", self.options.port))
        if facts != self.options.facts():
            raise BlinkError(
                f"runtime directory {self._runtime.path}: process {identity.pid} still serves "
                f"port {self._port} with other options; give the same ones, or end it first"
            )
        self._process = Process.take_over(identity)
        self._started_before = True

    def _bind(self, port: int) -> None:
        self._listener = bind_listener(self.options.host, port)
        self._port = int(self._listener.getsockname()[1])

    async def run(self) -> None:
        """Keep gunicorn running until `stop` or `kill`. Raises BlinkError when it cannot run."""
        backoff = Backoff(_FIRST_RETRY, _LONGEST_RETRY)
        clock = asyncio.get_running_loop().time
        while not self._closing:
            started = clock()
            if self._process is None:
                self._process = await self._start()
            process, ended = self._process, await self._process.wait()
            self._process = None
            if process.signal_group(signal.SIGTERM):
                self._killed.append(process)
            if self._closing:
                return
            if ended.code is not None and ended.code > 0:
                raise BlinkError(f"the HTTP workers cannot run: gunicorn ended: {ended}")
            log.error("gunicorn ended: %s; starting it again", ended)
            await asyncio.sleep(backoff.next(clock() - started))

    async def _start(self) -> Process:
        if self._listener is None:  # the one taken over held the socket, and is gone
            self._bind(self._port)
        assert self._listener is not None
        self._runtime.metrics.mkdir(mode=0o700, exist_ok=True)
        descriptor = self._listener.fileno()
        process = await Process.start(
            self._command(descriptor), env=self._environment(), pass_fds=(descriptor,)
        )
        write_record(
            self._runtime.http_record,
            process.identity,
            listening=self._port,
            **self.options.facts(),
        )
        self._started_before = True
        return process

    def _command(self, descriptor: int) -> list[str]:
        return [
            sys.executable,
            "-m",
            "gunicorn",
            "--config=python:blink_server.gunicorn_conf",
            f"--bind=fd://{descriptor}",
            f"--workers={self.options.workers}",
            *self.options.http.gunicorn_arguments(),
            "blink_server.worker:application()",
        ]

    def _environment(self) -> dict[str, str]:
        environment = dict(os.environ)
        environment.pop("GUNICORN_CMD_ARGS", None)  # it would override what `serve` decides
        environment[CONTROL_SOCKET_VARIABLE] = str(self._runtime.control_socket)
        environment[EXIT_TIMEOUT_VARIABLE] = str(self.options.exit_timeout_seconds)
        environment[METRICS_VARIABLE] = str(self._runtime.metrics)
        if self._started_before:
            environment[STARTED_AGAIN_VARIABLE] = "1"
        environment.update(self.options.http.environment())
        if self.options.api_key_file is not None:
            environment[API_KEY_FILE_VARIABLE] = self.options.api_key_file
        return environment

    async def stop(self) -> None:
        """Stop listening; open streams are served for the exit timeout at most."""
        self._closing = True
        self.close()
        if self._process is not None:
            await self._process.terminate(self.options.exit_timeout_seconds + _ARBITER_GRACE)
            self._killed.append(self._process)
        for process in self._killed:
            await process.end_group(_ORPHAN_GRACE)

    def kill(self) -> None:
        """End gunicorn and its workers at once."""
        self._closing = True
        for process in (*self._killed, *filter(None, (self._process,))):
            process.signal_group(signal.SIGKILL)

    def close(self) -> None:
        """Close this process's listening socket; the workers have their own copies."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
