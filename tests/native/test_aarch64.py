"""The native code for aarch64, a BlueField's processor: cross-compiled, and run by qemu-user.

Needs Debian's g++-aarch64-linux-gnu, and qemu-user for what is run; skipped without.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import nanobind
import pytest

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).parents[2]
HERE = Path(__file__).parent
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
OPTIONS = ["-std=c++20", "-O1", "-Wall", "-Wextra", "-pthread"]
SECONDS = 600
MODULES = re.findall(
    r"nanobind_add_module\((\w+) NB_STATIC ([^)]*)\)", (PROJECT / "CMakeLists.txt").read_text()
)
INCLUDES = re.findall(
    r"target_include_directories\(\w+ PRIVATE ([^)]*)\)", (PROJECT / "CMakeLists.txt").read_text()
)


def path_of(text: str) -> Path:
    return PROJECT / text.replace("${csrc}", "backends/blink_persistent/csrc")


def compile_with(*arguments: str | Path) -> None:
    if shutil.which(COMPILER) is None:
        pytest.skip(f"no {COMPILER}: apt-get install g++-aarch64-linux-gnu")
    includes = [f"-I{path_of(each)}" for each in INCLUDES]
    command = [COMPILER, *OPTIONS, *includes, *arguments]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert finished.returncode == 0, finished.stderr


@pytest.mark.parametrize(("module", "sources"), MODULES, ids=[name for name, _ in MODULES])
def test_the_native_modules_are_compiled(tmp_path: Path, module: str, sources: str) -> None:
    """Against this machine's Python headers: both are of 64 bits, little-endian."""
    found = Path(nanobind.include_dir()).parent
    target = tmp_path / f"{module}.so"
    compile_with(
        *("-shared", "-fPIC", "-fvisibility=hidden", "-DNDEBUG", "-fno-strict-aliasing"),
        *(f"-I{sysconfig.get_path('include')}", f"-I{found / 'include'}"),
        f"-I{found / 'ext' / 'robin_map' / 'include'}",
        found / "src" / "nb_combined.cpp",
        *map(path_of, sources.split()),
        *("-o", target),
    )
    header = target.read_bytes()[:20]
    assert header[:4] == b"\x7fELF"
    assert int.from_bytes(header[18:20], "little") == 183  # EM_AARCH64


@pytest.mark.parametrize(
    ("program", "arguments", "said"),
    [
        ("stress", ["movable"], "parks"),
        ("stress", ["fixed"], "parks"),
        ("stress", ["mixed"], "parks"),
        ("lanes", ["mixed"], "claims"),
        ("launch_failure", [], ""),
        ("host_driven", [], "right"),
    ],
)
def test_the_native_programs_run(
    tmp_path: Path, program: str, arguments: list[str], said: str
) -> None:
    target = tmp_path / program
    compile_with("-static", HERE / f"{program}.cc", "-o", target)
    if shutil.which(EMULATOR) is None:
        pytest.skip(f"no {EMULATOR}: apt-get install qemu-user")
    finished = subprocess.run(
        [EMULATOR, target, *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert said in finished.stdout
