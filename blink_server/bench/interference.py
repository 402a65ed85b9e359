"""Neighbours that are started beside a measurement and ended with it, whatever happens."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from types import TracebackType

from blink_server.bench.neighbour import KINDS
from blink_server.errors import BlinkError

ALTERNATING = "alternating"
CHOICES = (ALTERNATING, *KINDS)


def parse_cores(text: str) -> list[int]:
    """The cores in a list like `2-5,8`, as taskset has it; each once, in order.

    Raises BlinkError for what is no such list or names a core that this process may not use.
    """
    cores: set[int] = set()
    try:
        for part in text.split(","):
            first, dash, last = part.partition("-")
            cores.update(range(int(first), int(last if dash else first) + 1))
    except ValueError:
        raise BlinkError(f"cores are {text!r}; they must be a list like 2-5,8") from None
    usable = os.sched_getaffinity(0)
    if not cores or not cores <= usable:
        raise BlinkError(f"cores are {text!r}; this process may use {sorted(usable)}")
    return sorted(cores)


class Neighbours:
    """A context in which each of some cores has a process that never rests.

    `kind` is bzip2, memory, or alternating: these in turn, core by core. They are started and
    awaited by the thread that enters, and killed if that thread ends.
    """

    def __init__(self, kind: str, cores: Sequence[int]) -> None:
        self._kinds = cycle(KINDS) if kind == ALTERNATING else cycle((kind,))
        self._cores = cores
        self._processes: list[subprocess.Popen[str]] = []

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def __enter__(self) -> Neighbours:
        """Returns when all of them work. Raises BlinkError where one cannot."""
        try:
            for kind, core in zip(self._kinds, self._cores, strict=False):
                module = "blink_server.bench.neighbour"
                command = [sys.executable, "-m", module, kind, str(core), str(os.getpid())]
                self._processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            for process in self._processes:
                assert process.stdout is not None
                if process.stdout.readline() != "ready\n":
                    raise BlinkError(f"a neighbour ended: exit code {process.wait()}")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def cpu_seconds(self) -> float:
        """Processor time that they have used so far, together: whether they were there at all."""
        ticks = 0
        for process in self._processes:
            stat = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(stat[11]) + int(stat[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def _end(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        self._processes.clear()
