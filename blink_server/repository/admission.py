"""Whether a version's estimated memory fits into what the machine has left."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from pathlib import Path


def available_memory() -> int:
    """Bytes that a new process can have: the machine's, and the cgroup's where it has a limit."""
    return int(min(_machine_memory(), _cgroup_memory()))


def _machine_memory() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/meminfo has no line MemAvailable")


def _cgroup_memory(root: Path = Path("/sys/fs/cgroup")) -> float:
    """What cgroup v2 leaves to this process: limit - use + reclaimable file cache."""
    try:
        own = Path("/proc/self/cgroup").read_text().strip().rpartition("::")[2]
        group = root / own.lstrip("/")
        limit = (group / "memory.max").read_text().strip()
        if limit == "max":
            return float("inf")
        used = int((group / "memory.current").read_text())
        statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return int(limit) - used + int(statistics["inactive_file"])
    except (OSError, ValueError, KeyError):  # no cgroup v2, or its root, which has no limit
        return float("inf")


class Admission:
    """Admits loads while they fit, counting those that are admitted but not allocated yet."""

    def __init__(self, available: Callable[[], float] = available_memory) -> None:
        self._available = available
        self._reserved: dict[Hashable, int] = {}

    def admit(self, key: Hashable, needed: int) -> str:
        """Reserve `needed` bytes for `key`; returns "" or why they cannot be had."""
        available = self._available() - sum(self._reserved.values())
        if needed > available:
            return f"memory: needs {_gib(needed)}, {_gib(max(available, 0))} available"
        self._reserved[key] = needed
        return ""

    def settle(self, key: Hashable) -> None:
        """The load has allocated what it needs, or has ended: its reservation goes."""
        self._reserved.pop(key, None)


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"
