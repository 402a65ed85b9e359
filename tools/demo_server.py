"""The demo's server: started, waited for, and ended with all that it has started.

    <state>/demo.json   the record of `blink-server serve`, with its port
    <state>/demo.log    what it has written
    <state>/runtime     link to its runtime directory, which records its processes

They stay until nothing runs any more, so that even what a killed server leaves behind is found.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from blink_server.errors import BlinkError
from blink_server.listener import bind_listener, url_of
from blink_server.process import ProcessId
from blink_server.runtime_dir import living_processes, read_record, write_record

HOST = "127.0.0.1"

_START_SECONDS = 120.0
_STOP_SECONDS = 60.0
_LOOK_SECONDS = 0.1
_LAST_LOG_LINES = 20


@dataclass(frozen=True, slots=True)
class Demo:
    """What is served where; one server runs at a time of those that share a `state` folder."""

    name: str
    repository: Path
    state: Path
    port: int

    @property
    def url(self) -> str:
        return url_of(HOST, self.port)

    @property
    def log(self) -> Path:
        return self.state / "demo.log"

    @property
    def record(self) -> Path:
        return self.state / "demo.json"

    @property
    def runtime(self) -> Path:
        return self.state / "runtime"


def check_free(demo: Demo) -> None:
    """Raises BlinkError, saying what to do, where a demo runs or the port is in use."""
    if (running := read_record(demo.record)) is not None:
        process, facts = running
        at = f"as process {process.pid} on port {facts.get('port')}"
        raise BlinkError(f"the server of an earlier demo runs {at}: make stop ends it")
    if left := _named(list(living_processes(demo.runtime))):
        raise BlinkError(f"a demo server that was killed has left {left}: make stop ends them")
    try:
        bind_listener(HOST, demo.port).close()
    except BlinkError as error:
        hint = f"choose another one: make demo PORT={demo.port + 1}"
        raise BlinkError(f"{error}; {hint}") from None


def start_server(demo: Demo) -> subprocess.Popen[bytes]:
    """`blink-server serve` in a session of its own, which outlives this process; recorded."""
    demo.state.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "blink_server", "serve", f"--host={HOST}"]
    options = [f"--port={demo.port}", f"--model-repository={demo.repository}"]
    options.append(f"--runtime-dir={_runtime_directory(demo)}")
    with demo.log.open("wb") as log:
        server = subprocess.Popen(
            [*command, *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
    write_record(demo.record, ProcessId.of(server.pid), port=demo.port)
    return server


def _runtime_directory(demo: Demo) -> Path:
    # Elsewhere, under a short path: the checkout's may be too long for the names of sockets.
    if not demo.runtime.is_dir():
        demo.runtime.unlink(missing_ok=True)
        demo.runtime.symlink_to(tempfile.mkdtemp(prefix="blink-demo-"))
    return demo.runtime.resolve()


def wait_until_ready(demo: Demo, server: subprocess.Popen[bytes]) -> float:
    """Seconds until the model serves. Raises BlinkError, with the end of the log."""
    started = time.monotonic()
    while time.monotonic() - started < _START_SECONDS:
        if server.poll() is not None:
            fail_with_log(demo, "the server ended")
        if _is_ready(demo):
            return time.monotonic() - started
        log = demo.log.read_text(errors="replace")
        if re.search(rf"^  {re.escape(demo.name)}:\d+ +UNAVAILABLE", log, re.MULTILINE):
            fail_with_log(demo, "the server is up without the model")
        time.sleep(_LOOK_SECONDS)
    fail_with_log(demo, f"the model is not ready after {_START_SECONDS:.0f} s")


def _is_ready(demo: Demo) -> bool:
    try:
        with urllib.request.urlopen(f"{demo.url}/health/ready?model={demo.name}", timeout=5):
            return True
    except OSError:  # not listening yet, or 503
        return False


def fail_with_log(demo: Demo, what: str) -> NoReturn:
    """Raise BlinkError with the last lines of the log."""
    lines = demo.log.read_text(errors="replace").splitlines()[-_LAST_LOG_LINES:]
    raise BlinkError(
        "\n".join([f"{what}; the end of {demo.log}:", *(f"  {line}" for line in lines)])
    )


def stop_server(demo: Demo) -> str:
    """End the server, which drains, and whatever it has started; says what there was, or "".

    What does not end in time is ended for good.
    """
    said = []
    if (running := read_record(demo.record)) is not None:
        server = running[0]
        # The second SIGTERM skips draining.
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
            if not _end([server], number, os.kill):
                break
        said.append(f"the demo server, process {server.pid}")
    if left := list(living_processes(demo.runtime)):
        said.append(f"what a killed demo server had left: {_named(left)}")
        for number in (signal.SIGTERM, signal.SIGKILL):
            _end(left, number, os.killpg)
    demo.record.unlink(missing_ok=True)
    if demo.runtime.is_symlink():
        shutil.rmtree(demo.runtime.resolve(), ignore_errors=True)
        demo.runtime.unlink()
    return " and ".join(said)


def _end(
    processes: list[ProcessId], number: signal.Signals, send: Callable[[int, int], None]
) -> bool:
    """Send a signal to those that live and wait for their end; True if some live on."""
    for process in processes:
        if process.alive:
            with suppress(ProcessLookupError):
                send(process.pid, number)
    deadline = time.monotonic() + _STOP_SECONDS
    while any(process.alive for process in processes) and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
    return any(process.alive for process in processes)


def _named(processes: list[ProcessId]) -> str:
    if not processes:
        return ""
    return f"process{'es' * (len(processes) > 1)} {', '.join(str(p.pid) for p in processes)}"
