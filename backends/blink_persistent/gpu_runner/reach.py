"""Finds the process that owns a GPU, or starts it.

<runtime>/gpu-<n>.lock    held (flock) while somebody connects to it, starts it, or it leaves
<runtime>/gpu-<n>.sock    where links connect
<runtime>/gpu-<n>.log     what it has printed beside its log, which goes to its links
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from blink_persistent.lines import LineSocket, listen
from blink_server.errors import Unavailable

OWNER_MODULE = "blink_persistent.gpu_runner"
_HELLO_SECONDS = 60.0  # until a process that was just started answers
_CONNECTIONS = "32"  # of the GPU: work behind a resident kernel on the same one would wait for it


@dataclass(frozen=True, slots=True)
class GpuFiles:
    """Where the owner of GPU number `device` and those who look for it meet."""

    directory: Path
    device: int

    @property
    def lock(self) -> Path:
        return self.directory / f"gpu-{self.device}.lock"

    @property
    def socket(self) -> Path:
        return self.directory / f"gpu-{self.device}.sock"

    @property
    def log(self) -> Path:
        return self.directory / f"gpu-{self.device}.log"


def reach(files: GpuFiles, module: str = OWNER_MODULE) -> tuple[LineSocket, int]:
    """(a connection, the owner's pid); `python -m module` is started where there is no owner.

    Raises Unavailable where it cannot be started, or ends at once.
    """
    with locked(files.lock):
        connection = _connect(files.socket)
        if connection is None:
            _start(files, module)
            connection = _connect(files.socket)
    if connection is None:
        raise Unavailable(f"the process of GPU {files.device} cannot be reached")
    connection.settimeout(_HELLO_SECONDS)
    link = LineSocket(connection)
    try:
        pid = int(link.first()["pid"])
    except (OSError, ValueError, KeyError) as error:
        link.close()
        reason = last_words(files) or str(error)
        raise Unavailable(f"the process of GPU {files.device} did not answer: {reason}") from None
    connection.settimeout(None)
    return link, pid


@contextlib.contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold the lock file; yields False where it is another's and `wait` is false."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(lock)


def last_words(files: GpuFiles) -> str:
    """The line that says best why the owner has ended; "" where it has printed nothing."""
    try:
        lines = files.log.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return ""
    said = [line.strip() for line in lines if line.strip()]
    fatal = [line for line in said if line.startswith("Fatal Python error")]
    return (fatal or said or [""])[-1]


def visible_device(device: int, variables: Mapping[str, str]) -> str:
    """CUDA_VISIBLE_DEVICES for a process that shall see GPU number `device` of ours alone."""
    visible = variables.get("CUDA_VISIBLE_DEVICES")
    if not visible:
        return str(device)
    names = visible.split(",")
    if device >= len(names):
        raise Unavailable(f"GPU {device} does not exist: CUDA_VISIBLE_DEVICES is {visible!r}")
    return names[device].strip()


def _connect(path: Path) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(str(path))
    except OSError:
        connection.close()
        return None
    return connection


def _start(files: GpuFiles, module: str) -> None:
    """Start the owner on a socket that listens already, in a session of its own."""
    visible = visible_device(files.device, os.environ)
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": visible}
    environment.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", _CONNECTIONS)
    files.socket.unlink(missing_ok=True)
    with listen(files.socket) as listener, files.log.open("wb") as log:
        place = ("--directory", str(files.directory), "--device", str(files.device))
        subprocess.Popen(
            [sys.executable, "-m", module, *place, "--listener", str(listener.fileno())],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[listener.fileno()],
            start_new_session=True,
        )
