"""The command of a runner on the CPU: what its process is started with."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from blink_persistent.backend import PersistentBackend
from blink_persistent.engines.scripted import ScriptedEngine
from blink_persistent.testing.scripted_version import write_scripted_version
from blink_server.backend import ModelVersion
from blink_server.config import load_model_config

_MODE = Path("/sys/kernel/mm/transparent_hugepage/enabled")
# What the kernel is asked for: what it gives depends on how the machine's memory lies.
_PROGRAM = """
held = b"x" * (64 << 20)
total = 0
for line in open("/proc/self/smaps"):
    name, _, value = line.partition(":")
    if name == "Size":
        size = int(value.split()[0])
    elif name == "VmFlags" and "hg" in value.split():
        total += size
print(total)
"""

left_to_programs = pytest.mark.skipif(
    not _MODE.exists() or "[madvise]" not in _MODE.read_text(),
    reason="this kernel does not leave it to programs whether they use huge pages",
)


def huge_kilobytes(directory: Path) -> int:
    """KiB for which a process asks for huge pages that is started as a runner is, and allocates
    64 MiB."""
    backend = PersistentBackend({"scripted": ScriptedEngine}, {}, {})
    directory = write_scripted_version(directory)
    version = ModelVersion("scripted", 1, directory, load_model_config(directory))
    command = list(backend.runner_command(version, threads=1))
    python = command[: command.index("-m")]
    return int(subprocess.check_output([*python, "-c", _PROGRAM]))


@left_to_programs
def test_what_a_runner_allocates_is_to_lie_in_huge_pages(tmp_path: Path) -> None:
    assert huge_kilobytes(tmp_path) >= 64 << 10


@left_to_programs
def test_a_users_own_settings_of_glibc_prevail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0")
    assert huge_kilobytes(tmp_path) == 0
