"""The thread block's sampler chooses what the host's sampler chooses, whatever its lanes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import blink_persistent
from blink_persistent.gpu import compile as device_code
from blink_persistent.gpu.structs import layout_assertions
from blink_persistent.samplers.default_cuda import SAMPLER_STRUCTS

HERE = Path(__file__).resolve().parent
INCLUDE = Path(blink_persistent.__path__[-1]) / "csrc" / "include"

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")


def build(directory: Path, *options: str) -> Path:
    program = directory / "sampler_lanes"
    flags = ["-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{INCLUDE}"]
    command = ["g++", *flags, *options, str(HERE / "sampler_lanes.cc"), "-o", str(program)]
    subprocess.run(command, check=True, timeout=300)
    return program


def run(*command: str) -> dict[str, int]:
    """The program's closing counts."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    words = done.stdout.split()
    return {name: int(count) for name, count in zip(words[::2], words[1::2], strict=True)}


@pytest.fixture(scope="module")
def sampler_lanes(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(build(tmp_path_factory.mktemp("sampler")))


@needs_compiler
@pytest.mark.parametrize("lanes", ["1", "2", "5"])
def test_random_rows_are_sampled_as_on_the_host(sampler_lanes: str, lanes: str) -> None:
    rows = {"1": "3000", "2": "600", "5": "300"}[lanes]
    counts = run(sampler_lanes, lanes, f"1{lanes}", rows)
    assert counts["drawn"] > int(rows) // 2
    assert counts["refused"] > int(rows) // 50
    assert counts["constrained"] > int(rows) // 5
    assert counts["wrong"] == 0


@needs_compiler
def test_lanes_do_not_race(tmp_path: Path) -> None:
    program = build(tmp_path, "-g", "-fsanitize=thread")
    # Thread sanitizer needs its shadow memory where address randomization may put other things.
    prefix = ["setarch", "-R"] if shutil.which("setarch") else []
    run(*prefix, str(program), "3", "7", "40")


@pytest.mark.usefixtures("device_compiler")
def test_the_kernel_compiles_where_there_is_a_device_compiler() -> None:
    mirrors = layout_assertions(SAMPLER_STRUCTS)
    code = device_code.compile_program("sampler_gpu.cu", arch="sm_90", epilogue=mirrors)
    assert b"blink_sample" in code
