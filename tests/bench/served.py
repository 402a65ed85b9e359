"""A real server for a benchmark: how long it takes to start, and what memory it takes in all."""

from __future__ import annotations

import contextlib
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from blink_server.testing.server_process import ServerProcess


@asynccontextmanager
async def served(
    repository: Path, *arguments: str
) -> AsyncIterator[tuple[ServerProcess, str, float]]:
    """(server, URL, seconds from the start of `serve` to its being ready); stopped at the end."""
    directory = Path(tempfile.mkdtemp(prefix="blink-bench-"))
    started = time.monotonic()
    server = await ServerProcess.start(repository, directory / "run", *arguments)
    try:
        url = await server.ready()
        yield server, url, time.monotonic() - started
        await server.stop()
    finally:
        for _ in range(2):  # the second one skips draining; then it ends what it has started itself
            server.signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            await server.exit()
        server.kill_everything()
        await server.exit()
        shutil.rmtree(directory, ignore_errors=True)


def proportional_bytes(pid: int) -> dict[str, int]:
    """PSS in bytes of a process and all below it, each by "pid name"; shared pages count once."""
    found = {}
    for one in _family(pid):
        with contextlib.suppress(OSError):
            name = Path(f"/proc/{one}/comm").read_text().strip()
            lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
            kibibytes = next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
            found[f"{one} {name}"] = kibibytes * 1024
    return found


def _family(pid: int) -> list[int]:
    family = [pid]
    for one in family:
        for task in Path(f"/proc/{one}/task").iterdir():
            with contextlib.suppress(OSError):
                family += [int(child) for child in (task / "children").read_text().split()]
    return family
