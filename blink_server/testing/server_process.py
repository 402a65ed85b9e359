"""A whole server for tests: `blink-server serve` as a child process, with its own children."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from blink_server.process import Process, ProcessId
from blink_server.runtime_dir import living_processes, read_record

_SECONDS = 60.0  # longer than anything here takes


class ServerProcess:
    """One `serve` on a free port; `lines` is all that it and its children have written so far."""

    def __init__(self, runtime: Path) -> None:
        self.runtime = runtime
        self.lines: list[str] = []
        self._process: Process
        self._waiting: dict[asyncio.Future[str], str] = {}

    @classmethod
    async def start(
        cls, repository: Path, runtime: Path, *arguments: str, plugins: Path | None = None
    ) -> ServerProcess:
        """Start; returns at once. Further command line `arguments` win over those given here."""
        server = cls(runtime)
        command = [
            *(sys.executable, "-m", "blink_server", "serve", "--port=0"),
            *(f"--model-repository={repository}", f"--runtime-dir={runtime}"),
            *(() if plugins is None else (f"--plugin-dir={plugins}",)),
            *arguments,
        ]
        environment = os.environ | {"PYTHONUNBUFFERED": "1"}
        server._process = await Process.start(command, env=environment, on_line=server._read)
        return server

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def line(self, text: str, *, after: int = 0, seconds: float = _SECONDS) -> str:
        """Wait for a line that contains `text`, not among the first `after` of `lines`.

        Raises AssertionError if none comes within `seconds`.
        """
        for line in self.lines[after:]:
            if text in line:
                return line
        found: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting[found] = text
        ended = asyncio.ensure_future(self._process.wait())
        await asyncio.wait((found, ended), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        del self._waiting[found]
        if not found.done():
            raise AssertionError(f"no line with {text!r} in:\n{self.output}")
        return found.result()

    async def ready(self, *, seconds: float = _SECONDS) -> str:
        """Wait until every model is READY or UNAVAILABLE; returns the server's URL."""
        return (await self.line("Blink server on ", seconds=seconds)).split()[-1]

    async def exit(self) -> int | None:
        """Wait for the provisioner's end; returns its status."""
        return (await asyncio.wait_for(self._process.wait(), _SECONDS)).code

    def signal(self, number: signal.Signals) -> None:
        """Signal the provisioner."""
        self._process.signal(number)

    async def stop(self) -> int | None:
        """SIGTERM, and wait."""
        self.signal(signal.SIGTERM)
        return await self.exit()

    def front(self) -> ProcessId:
        """The gunicorn arbiter."""
        return _recorded(self.runtime / "http.json")

    def workers(self) -> list[ProcessId]:
        """The HTTP workers that live now."""
        front = self.front().pid
        children = Path(f"/proc/{front}/task/{front}/children").read_text().split()
        found = []
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                found.append(ProcessId.of(int(child)))
        return found

    def runner(self, number: int = 1) -> ProcessId:
        """The `number`-th runner that was started in this runtime directory."""
        return _recorded(self.runtime / f"runner-{number}" / "runner.json")

    def worker_serving(self, client_port: int) -> ProcessId:
        """The worker that has the server's end of a TCP connection over IPv4."""
        inode = _inode_of_server_end(client_port)
        for worker in self.workers():
            with contextlib.suppress(OSError):  # one that has ended meanwhile
                links = Path(f"/proc/{worker.pid}/fd").iterdir()
                if any(f"socket:[{inode}]" == _target(link) for link in links):
                    return worker
        raise AssertionError(f"no worker serves port {client_port}")

    def kill_everything(self) -> None:
        """End whatever of this server is left, for a test's clean-up."""
        self._process.kill()  # first, lest it start again what is ended here
        for left in living_processes(self.runtime):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(left.pid, signal.SIGKILL)

    def _read(self, line: str) -> None:
        self.lines.append(line)
        for found, text in self._waiting.items():
            if text in line and not found.done():
                found.set_result(line)


def processes(needle: Path) -> Sequence[int]:
    """Processes that have `needle` in their command line or environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
                if os.fsencode(needle) in text:
                    found.append(int(entry.name))
    return [pid for pid in found if pid != os.getpid()]


def _recorded(path: Path) -> ProcessId:
    found = read_record(path)
    if found is None:
        raise AssertionError(f"no living process is recorded in {path}")
    return found[0]


def _inode_of_server_end(client_port: int) -> str:
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[2].rpartition(":")[2], 16) == client_port and fields[9] != "0":
            return fields[9]
    raise AssertionError(f"no connection from port {client_port}")


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""
