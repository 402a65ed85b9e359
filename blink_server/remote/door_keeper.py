"""The door as a child of the provisioner: started at once, started again when it has died."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from dataclasses import asdict

from blink_server.backoff import Backoff
from blink_server.errors import BlinkError
from blink_server.listener import bind_listener
from blink_server.process import Process
from blink_server.remote.door_options import DoorOptions
from blink_server.runtime_dir import RuntimeDirectory, read_record, write_record

log = logging.getLogger(__name__)

_FIRST_RETRY = 0.5  # seconds
_LONGEST_RETRY = 30.0
_GRACE_SECONDS = 5.0


class DoorKeeper:
    """All calls on the provisioner's event loop."""

    def __init__(self, options: DoorOptions, runtime: RuntimeDirectory) -> None:
        self._options = options
        self._runtime = runtime
        self._listener: socket.socket | None = None
        self._process: Process | None = None
        self._closing = False
        self._host, self._port = options.address

    @property
    def address(self) -> tuple[str, int]:
        """Host as asked for, and the port that is listened on."""
        return self._host, self._port

    def claim(self) -> None:
        """Take over the door that a dead predecessor has left, or bind the listening socket.

        Raises BlinkError; nothing is started then.
        """
        found = read_record(self._runtime.door_record)
        if found is None:
            self._bind()
            return
        identity, facts = found
        self._port = int(facts.pop("listening", self._port))
        if facts != asdict(self._options):
            raise BlinkError(
                f"runtime directory {self._runtime.path}: process {identity.pid} still lets "
                f"frontends in at port {self._port} with other options; give the same ones, or "
                "end it first"
            )
        self._process = Process.take_over(identity)

    async def run(self) -> None:
        """Keep the door running until `stop` or `kill`."""
        backoff = Backoff(_FIRST_RETRY, _LONGEST_RETRY)
        clock = asyncio.get_running_loop().time
        while not self._closing:
            started = clock()
            if self._process is None:
                self._process = await self._start()
            ended = await self._process.wait()
            self._process = None
            if self._closing:
                return
            log.error("the door for frontends ended: %s; starting it again", ended)
            await asyncio.sleep(backoff.next(clock() - started))

    async def stop(self) -> None:
        """Let nobody in any more, and end what frontends have in flight."""
        self._closing = True
        if self._process is not None:
            await self._process.terminate(_GRACE_SECONDS)
        self.close()

    def kill(self) -> None:
        """End it at once."""
        self._closing = True
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """Close this process's listening socket."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _bind(self) -> None:
        self._listener = bind_listener(self._host, self._port)
        self._port = int(self._listener.getsockname()[1])

    async def _start(self) -> Process:
        if self._listener is None:  # the one taken over held the socket, and is gone
            self._bind()
        assert self._listener is not None
        options, descriptor = self._options, self._listener.fileno()
        command = [
            *(sys.executable, "-m", "blink_server.remote.door_process"),
            *(f"--listener={descriptor}", f"--keys={options.keys}", f"--device={options.device}"),
            f"--control-socket={self._runtime.control_socket}",
            f"--keep-secs={options.keep_seconds}",
        ]
        process = await Process.start(command, env=os.environ, pass_fds=(descriptor,))
        write_record(
            self._runtime.door_record, process.identity, listening=self._port, **asdict(options)
        )
        return process
