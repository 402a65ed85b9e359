"""Compiles the native test programs with sanitizers and runs them.

ThreadSanitizer runs what has threads; AddressSanitizer and UndefinedBehaviorSanitizer run all.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import blink_persistent

HERE = Path(__file__).parent
INCLUDES = [
    Path(blink_persistent.__file__).parent / "csrc" / "include",
    HERE.parents[1] / "plugins" / "blink_bpe" / "csrc" / "include",
]
SANITIZERS = {
    "thread": ["-fsanitize=thread"],
    "address": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
}
LIMIT_SECONDS = 300

Build = Callable[[str, str], Path]


def compile_program(source: Path, sanitizer: str, target: Path) -> None:
    compiler = os.environ.get("CXX", "g++")
    options = ["-std=c++20", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]
    includes = [f"-I{directory}" for directory in INCLUDES]
    subprocess.run(
        [compiler, *options, *SANITIZERS[sanitizer], *includes, source, "-o", target],
        check=True,
        timeout=LIMIT_SECONDS,
    )


def run(program: Path, *arguments: str) -> str:
    finished = subprocess.run(
        [program, *arguments], capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Compiles a program once; skips where this machine cannot run that sanitizer at all."""
    directory = tmp_path_factory.mktemp("native")
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        pytest.skip("no C++ compiler")

    def build(name: str, sanitizer: str) -> Path:
        trivial = directory / f"trivial-{sanitizer}"
        if not trivial.exists():
            source = directory / "trivial.cc"
            source.write_text("int main() {}\n")
            try:
                compile_program(source, sanitizer, trivial)
                subprocess.run([trivial], check=True, capture_output=True, timeout=LIMIT_SECONDS)
            except subprocess.CalledProcessError as error:
                pytest.skip(f"the {sanitizer} sanitizer does not work here: {error}")
        program = directory / f"{name}-{sanitizer}"
        if not program.exists():
            compile_program(HERE / f"{name}.cc", sanitizer, program)
        return program

    return build


@pytest.mark.parametrize("sanitizer", SANITIZERS)
@pytest.mark.parametrize("rows", ["fixed", "movable", "mixed"])
def test_threads_of_scheduler_engine_and_frontends(build: Build, sanitizer: str, rows: str) -> None:
    assert "parks" in run(build("stress", sanitizer), rows)


@pytest.mark.parametrize("rows", ["fixed", "movable", "mixed"])
def test_lanes_neither_race_nor_matter(build: Build, rows: str) -> None:
    assert "claims" in run(build("lanes", "thread"), rows)


def test_a_launch_that_fails_ends_its_requests(build: Build) -> None:
    run(build("launch_failure", "address"))


def test_what_is_foreseen_while_a_graph_runs(build: Build) -> None:
    assert "right" in run(build("foresight", "address"))


@pytest.mark.parametrize("sanitizer", [pytest.param("address", marks=pytest.mark.slow), "thread"])
def test_graphs_that_a_host_drives(build: Build, sanitizer: str) -> None:
    assert "right" in run(build("host_driven", sanitizer))


@pytest.mark.slow
def test_the_tokenizer_on_random_text(build: Build) -> None:
    assert "right" in run(build("blink_bpe", "address"))


@pytest.mark.slow
def test_the_tokenizer_on_an_emulated_arm(tmp_path: Path) -> None:
    compiler, emulator = "aarch64-linux-gnu-g++", "qemu-aarch64"
    if shutil.which(compiler) is None or shutil.which(emulator) is None:
        pytest.skip(f"needs {compiler} and {emulator}")
    program = tmp_path / "blink_bpe"
    options = ["-std=c++20", "-O2", "-static", "-Wall", "-Wextra", "-Werror"]
    includes = [f"-I{directory}" for directory in INCLUDES]
    command = [compiler, *options, *includes, str(HERE / "blink_bpe.cc"), "-o", str(program)]
    subprocess.run(command, check=True, timeout=LIMIT_SECONDS)
    finished = subprocess.run(
        [emulator, program], capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )
    assert finished.returncode == 0, finished.stderr
    assert "with neon" in finished.stdout
