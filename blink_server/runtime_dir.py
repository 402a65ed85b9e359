"""The runtime directory: one server's sockets and the records of the processes it has started.

    <runtime>/lock              held (flock) by the provisioner as long as it lives
    <runtime>/control.sock      the control channel
    <runtime>/http.json         the record of gunicorn
    <runtime>/door.json         the record of the door for frontends on other machines
    <runtime>/metrics/          the workers' metric files
    <runtime>/runner-<n>/       BLINK_RUNTIME_DIR of one runner, with its record runner.json

Without `--runtime-dir` it is made under $XDG_RUNTIME_DIR/blink-server, or under
blink-server-<uid> in the temporary directory, and those whose server is dead and has left no
process running are removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from blink_server.errors import BlinkError
from blink_server.process import ProcessId

_LONGEST_SOCKET_PATH = 107  # bytes: sockaddr_un.sun_path without its terminating zero
_LONGEST_SOCKET_NAME = len("/runner-99999/request.sock")


class RuntimeDirectory:
    """A locked runtime directory; `close` removes it."""

    def __init__(self, path: Path, lock: int, *, keep_directory: bool) -> None:
        self.path = path
        self._lock = lock
        self._keep_directory = keep_directory

    @property
    def control_socket(self) -> Path:
        return self.path / "control.sock"

    @property
    def http_record(self) -> Path:
        return self.path / "http.json"

    @property
    def door_record(self) -> Path:
        return self.path / "door.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics"

    def new_runner_directory(self) -> Path:
        """A fresh private directory for one runner."""
        number = 1 + max(
            (int(p.name.partition("-")[2]) for p in self.runner_directories()), default=0
        )
        directory = self.path / f"runner-{number}"
        directory.mkdir(mode=0o700)
        return directory

    def runner_directories(self) -> list[Path]:
        """Those of this server's runners, and of its predecessor's here."""
        return [p for p in self.path.glob("runner-*") if p.name.partition("-")[2].isdecimal()]

    def close(self) -> None:
        """Remove everything in it, and itself unless somebody else had made it."""
        if self._keep_directory:
            for entry in self.path.iterdir():
                _remove(entry)
        else:
            shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)

    def release(self) -> None:
        """Give up the lock and leave everything for a successor."""
        os.close(self._lock)


def open_runtime_directory(explicit: Path | None) -> RuntimeDirectory:
    """Make (or, where a dead server has left it, take over) the runtime directory and lock it.

    Raises BlinkError when it is in use, not private, somebody else's, or its path too long.
    """
    if explicit is not None:
        return _open_explicit(explicit.absolute())
    base = _default_base()
    _make_private(base)
    with _locked(base / "lock"):
        for directory in sorted(base.iterdir()):
            if directory.is_dir():
                _remove_if_stale(directory)
        path = base / secrets.token_hex(4)
        _check_length(path)
        path.mkdir(mode=0o700)
        return RuntimeDirectory(path, _lock(path), keep_directory=False)


def find_control_sockets() -> list[Path]:
    """Of every living server of this user that has its runtime directory in the default place."""
    found = []
    for lock in sorted(_default_base().glob("*/lock")):
        holder = lock.read_text().strip()
        socket = lock.with_name("control.sock")
        if holder.isdecimal() and Path(f"/proc/{holder}").exists() and socket.exists():
            found.append(socket)
    return found


def _open_explicit(path: Path) -> RuntimeDirectory:
    _check_length(path)
    existed = path.exists()
    if existed and path.is_dir() and any(path.iterdir()) and not (path / "lock").exists():
        raise BlinkError(f"runtime directory {path}: holds other files; give one that is empty")
    _make_private(path)
    return RuntimeDirectory(path, _lock(path), keep_directory=existed)


def _default_base() -> Path:
    configured = os.environ.get("XDG_RUNTIME_DIR")
    if configured and os.access(configured, os.W_OK):
        return Path(configured) / "blink-server"
    return Path(tempfile.gettempdir()) / f"blink-server-{os.geteuid()}"


def _check_length(path: Path) -> None:
    longest = len(os.fsencode(path)) + _LONGEST_SOCKET_NAME
    if longest > _LONGEST_SOCKET_PATH:
        raise BlinkError(
            f"runtime directory {path}: {longest - _LONGEST_SOCKET_PATH} bytes too long for the "
            "paths of the sockets in it; give a shorter --runtime-dir"
        )


def _make_private(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.lstat()
    except OSError as error:
        raise BlinkError(f"runtime directory {path}: {error.strerror}") from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise BlinkError(f"runtime directory {path}: must be a directory of this user")
    if status.st_mode & 0o077:
        raise BlinkError(
            f"runtime directory {path}: others may enter it (mode {status.st_mode & 0o777:04o}); "
            "must be 0700"
        )


def _lock(path: Path) -> int:
    lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.read(lock, 32).decode(errors="replace").strip()
        os.close(lock)
        raise BlinkError(f"runtime directory {path}: in use by the server {holder}") from None
    os.truncate(lock, 0)
    os.write(lock, f"{os.getpid()}\n".encode())
    return lock


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _remove_if_stale(directory: Path) -> None:
    try:
        lock = _lock(directory)
    except BlinkError:
        return
    try:
        if not any(True for _ in living_processes(directory)):
            shutil.rmtree(directory, ignore_errors=True)
    finally:
        os.close(lock)


def _remove(entry: Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry, ignore_errors=True)
    else:
        entry.unlink(missing_ok=True)


def write_record(path: Path, process: ProcessId, **facts: Any) -> None:
    """Record a started process, so that a successor can find it; written whole or not at all."""
    record = {"pid": process.pid, "start_ticks": process.start_ticks, **facts}
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(record))
    temporary.replace(path)


def read_record(path: Path) -> tuple[ProcessId, dict[str, Any]] | None:
    """The recorded process and facts when it still lives, else None."""
    try:
        record = json.loads(path.read_text())
        process = ProcessId(record.pop("pid"), record.pop("start_ticks"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return (process, record) if process.alive else None


def living_processes(directory: Path) -> Iterator[ProcessId]:
    """The processes recorded in a runtime directory that still run."""
    records = ("http.json", "door.json", "runner-*/runner.json")
    for path in (path for pattern in records for path in directory.glob(pattern)):
        if (found := read_record(path)) is not None:
            yield found[0]
