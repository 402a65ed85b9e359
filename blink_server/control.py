"""The runner's side of the control channel: what a backend's runner process must speak.

The provisioner starts a runner with the environment below, and the runner connects to
BLINK_CONTROL_SOCKET with a `RunnerChannel`, which `blink_server.runner_main.run_runner` gives it:

    channel.progress("weights", 0.4)
    channel.ready(Endpoint("shm", {"socket": path}), memory_bytes)   # or channel.failed(reason)
    for command in channel.commands():                               # Drain or Stop
        ...

A runner does not depend on the provisioner's life. When the provisioner goes, the channel connects
again to its successor on the same socket path, registers and repeats what it last said. A runner
that a successor does not want is told to `Stop`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import select
import socket
import stat
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from blink_server.backend import Endpoint
from blink_server.errors import BlinkError
from blink_server.message_codec import MAX_LINE, ProtocolError, decode, encode
from blink_server.messages import (
    TO_RUNNER,
    Drain,
    Failed,
    Message,
    Progress,
    Ready,
    RegisterRunner,
    RunnerCommand,
    Stop,
)

log = logging.getLogger(__name__)

SCHEDULER_VARIABLE = "BLINK_SCHEDULER"
"""A runner's environment variable: who launches a GPU's steps, "device" or "host", whatever
config.json says; not set, config.json decides. `serve --scheduler` sets it."""

HOST_RANGES_VARIABLE = "BLINK_HOST_RANGES"
"""A runner's environment variable: how many ranges of a ring in GPU memory stay with this host's
workers; the others are for frontends that reach into that memory. Not set, all stay. `serve` sets
it where it lets frontends in with `--frontends-gpudirect`."""

_FIRST_RETRY = 0.05  # seconds
_LONGEST_RETRY = 1.0
_LAST_WORDS_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class RunnerEnvironment:
    """What the provisioner tells a runner; `runtime_directory` is the runner's alone.

    `config_file` holds the version's effective configuration: config.json as it was validated, with
    every default filled in.
    """

    control_socket: Path
    model: str
    version: int
    epoch: int
    runtime_directory: Path
    version_directory: Path
    config_file: Path

    def variables(self) -> dict[str, str]:
        """The environment variables that carry it."""
        return {
            "BLINK_CONTROL_SOCKET": str(self.control_socket),
            "BLINK_RUNNER_MODEL": self.model,
            "BLINK_RUNNER_VERSION": str(self.version),
            "BLINK_RUNNER_EPOCH": str(self.epoch),
            "BLINK_RUNTIME_DIR": str(self.runtime_directory),
            "BLINK_VERSION_DIRECTORY": str(self.version_directory),
            "BLINK_VERSION_CONFIG": str(self.config_file),
        }

    @classmethod
    def read(cls, variables: Mapping[str, str] = os.environ) -> RunnerEnvironment:
        """Raises BlinkError naming the variable that is missing or wrong."""
        try:
            return cls(
                control_socket=Path(variables["BLINK_CONTROL_SOCKET"]),
                model=variables["BLINK_RUNNER_MODEL"],
                version=int(variables["BLINK_RUNNER_VERSION"]),
                epoch=int(variables["BLINK_RUNNER_EPOCH"]),
                runtime_directory=Path(variables["BLINK_RUNTIME_DIR"]),
                version_directory=Path(variables["BLINK_VERSION_DIRECTORY"]),
                config_file=Path(variables["BLINK_VERSION_CONFIG"]),
            )
        except KeyError as error:
            raise BlinkError(f"{error.args[0]} is not set: runners are started by serve") from None
        except ValueError as error:
            raise BlinkError(f"BLINK_RUNNER_VERSION, BLINK_RUNNER_EPOCH: {error}") from None


class RunnerChannel:
    """A runner's connection to the provisioner, kept by a daemon thread; any thread may call."""

    def __init__(self, environment: RunnerEnvironment) -> None:
        self.environment = environment
        self._register = RegisterRunner(
            environment.model, environment.version, environment.epoch, os.getpid()
        )
        self._lock = threading.Lock()  # guards the two below and the order of lines
        self._socket: socket.socket | None = None
        self._last_word: Progress | Ready | Failed | None = None
        self._commands: queue.SimpleQueue[RunnerCommand | None] = queue.SimpleQueue()
        self._connected = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._keep_connected, name="control", daemon=True)

    @classmethod
    def from_environment(cls) -> RunnerChannel:
        """The channel of the process that `serve` started. Raises BlinkError outside of one."""
        return cls(RunnerEnvironment.read())

    def start(self) -> None:
        """Connect and register in the background; returns at once."""
        self._thread.start()

    def progress(self, stage: str, fraction: float) -> None:
        """Tell how far the load is; who listens later hears the last of it."""
        with self._lock:
            if not isinstance(self._last_word, Ready | Failed):
                self._last_word = Progress(stage, fraction)
                self._send(self._last_word)

    def ready(self, endpoint: Endpoint, memory_bytes: int) -> None:
        """The version serves at `endpoint`; repeated to every later provisioner."""
        with self._lock:
            self._last_word = Ready(endpoint, memory_bytes)
            self._send(self._last_word)

    def failed(self, reason: str, *, memory: bool = False) -> None:
        """The version cannot be loaded, `memory`: for lack of it. The runner should then exit with
        a status other than 0.

        Waits a few seconds where the channel is not connected yet.
        """
        with self._lock:
            self._last_word = Failed(reason, memory)
        self._connected.wait(_LAST_WORDS_SECONDS)
        with self._lock:
            self._send(self._last_word)

    def commands(self) -> Iterator[RunnerCommand]:
        """Block for the provisioner's commands; ends after `close`."""
        while (command := self._commands.get()) is not None:
            yield command

    def close(self) -> None:
        """Disconnect, and end `commands`; may be called again, also from a signal handler."""
        self._closed.set()
        self._commands.put(None)
        # No lock and no join: a handler may have interrupted the very code that holds the lock.
        connection = self._socket
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _send(self, message: Message) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):  # the reading thread sees the same end
                self._socket.sendall(encode(message))

    def _keep_connected(self) -> None:
        retry = _FIRST_RETRY
        while not self._closed.is_set():
            try:
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                    connection.connect(str(self.environment.control_socket))
                    self._register_on(connection)
                    retry = _FIRST_RETRY
                    self._read_commands(connection)
            except OSError as error:
                log.debug("control channel: %s", error)
            except ProtocolError as error:
                log.error("control channel: %s", error)
            finally:
                with self._lock:
                    self._socket = None
                    self._connected.clear()
            _detach_from_dead_reader()
            self._closed.wait(retry)
            retry = min(2 * retry, _LONGEST_RETRY)

    def _register_on(self, connection: socket.socket) -> None:
        with self._lock:
            connection.sendall(encode(self._register))
            if self._last_word is not None:
                connection.sendall(encode(self._last_word))
            self._socket = connection
            self._connected.set()

    def _read_commands(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as lines:
            while not self._closed.is_set() and (line := lines.readline(MAX_LINE)):
                command = decode(line, TO_RUNNER)
                assert isinstance(command, Drain | Stop)
                self._commands.put(command)


def _detach_from_dead_reader() -> None:
    """Point output that nobody will read again at /dev/null.

    A runner's output is a pipe to the provisioner. Once that has died, the next line printed
    would raise BrokenPipeError somewhere in a runner that must serve on.
    """
    poll = select.poll()
    for stream in (1, 2):
        if stat.S_ISFIFO(os.fstat(stream).st_mode):
            poll.register(stream, 0)
    for stream, event in poll.poll(0):
        if event & select.POLLERR:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream)
            os.close(null)
