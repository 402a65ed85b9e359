"""The process that owns a GPU, for all versions on it: takes links in, ends with the last of them.

python -m blink_persistent.gpu_runner --directory RUNTIME --device N --listener FD
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import logging
import os
import select
import signal
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from blink_persistent.gpu_runner.reach import GpuFiles, locked
from blink_persistent.gpu_runner.service import GpuLost, MakeService
from blink_persistent.gpu_runner.turns import Turns
from blink_persistent.gpu_runner.version_life import VersionLife
from blink_persistent.serving import new_eventfd
from blink_server.logs import RUNNER_FORMAT

log = logging.getLogger(__name__)

LOST = 71  # exit status
_PEER_CREDENTIALS = struct.Struct("3i")
_ALONE_SECONDS = 0.5  # between two attempts to leave, while somebody holds the lock


class Owner:
    """Its main thread takes links in; each version has a thread of its own."""

    def __init__(self, files: GpuFiles, listener: socket.socket, make_service: MakeService) -> None:
        self._files = files
        self._listener = listener
        self._make_service = make_service
        self._turns = Turns()
        self._guard = threading.Lock()
        self._lives: set[VersionLife] = set()
        self._left = new_eventfd()
        self._leaving = False

    def run(self) -> None:
        """Until no version is left."""
        while not self._leaving:
            with self._guard:
                alone = not self._lives
            timeout = _ALONE_SECONDS if alone else None
            waiting: list[Any] = [self._listener, self._left]
            readable, _, _ = select.select(waiting, [], [], timeout)
            if self._left in readable:
                os.eventfd_read(self._left)
            if self._listener in readable:
                self._accept()
            elif alone:
                with self._guard:
                    self._try_to_leave()
        for thread in threading.enumerate():
            if isinstance(thread, VersionLife):
                thread.join()  # the last one still says so to its link

    def log_line(self, line: str) -> None:
        """Give a line of the log to the link of the version whose thread it comes from (they are
        called after it); what is nobody's, to all."""
        name = threading.current_thread().name.partition(" ")[0]
        with self._guard:
            lives = list(self._lives)
        for life in [each for each in lives if each.name == name] or lives:
            life.say_if_heard("log", line=line)

    def _accept(self) -> None:
        with self._guard:  # one who has connected is seen to be there, waiting or taken in
            connection, _ = self._listener.accept()
            life = VersionLife(
                connection,
                self._make_service,
                self._turns,
                on_lost=self._lose,
                leaves=self._leaves,
            )
            self._lives.add(life)
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
        pid, uid, _ = _PEER_CREDENTIALS.unpack(raw)
        if uid == os.geteuid():
            life.say("hello", pid=os.getpid())
        else:
            log.warning("refused a link: process %d belongs to user %d", pid, uid)
            connection.shutdown(socket.SHUT_RDWR)
        life.start()

    def _leaves(self, life: VersionLife) -> bool:
        """A version is given back; whether this process goes with it."""
        with self._guard:
            self._lives.discard(life)
            if not self._lives:
                self._try_to_leave()
            os.eventfd_write(self._left, 1)
            return self._leaving

    def _try_to_leave(self) -> None:
        """Leave, unless somebody has connected, or is about to."""
        try:
            with locked(self._files.lock, wait=False) as held:
                if held and not select.select([self._listener], [], [], 0)[0]:
                    self._files.socket.unlink(missing_ok=True)
                    self._leaving = True
        except FileNotFoundError:  # the runtime folder is gone: nobody finds this process any more
            self._leaving = True

    def _lose(self, lost: GpuLost) -> None:
        """End the process: what hangs cannot be taken back, supervisors can start afresh."""
        faulthandler.dump_traceback(all_threads=True)
        with self._guard:
            for life in self._lives:
                life.say("dying", reason=str(lost))
        os._exit(LOST)


class _LinkLog(logging.Handler):
    def __init__(self, write: Callable[[str], None]) -> None:
        super().__init__()
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        """One message a line of text."""
        with contextlib.suppress(Exception):
            for line in self.format(record).splitlines():
                self._write(line)


def main(make_service: MakeService, arguments: list[str] | None = None) -> int:
    """The process; `make_service` puts versions in service."""
    parser = argparse.ArgumentParser(prog="blink_persistent.gpu_runner")
    parser.add_argument("--directory", type=Path, required=True, help="the server's runtime folder")
    parser.add_argument("--device", type=int, required=True, help="number of the GPU")
    parser.add_argument("--listener", type=int, required=True, help="descriptor that links reach")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the provisioner's to handle
    faulthandler.enable()
    os.set_inheritable(options.listener, False)
    with socket.socket(fileno=options.listener) as listener:
        owner = Owner(GpuFiles(options.directory, options.device), listener, make_service)
        handler = _LinkLog(owner.log_line)
        handler.setFormatter(logging.Formatter(RUNNER_FORMAT))
        logging.basicConfig(level=logging.INFO, handlers=[handler])
        owner.run()
    return 0
