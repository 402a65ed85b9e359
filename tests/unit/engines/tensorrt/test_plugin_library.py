"""The plugin in C++ does what the one in Python does.

It is compiled against declarations of the few classes that it uses, since TensorRT's headers cannot
be had here, and run over a driver that only says what is asked of it.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from blink_persistent.engines.tensorrt.attention_launches import (
    AttentionShape,
    Buffers,
    attention_launches,
    workspace_bytes,
)
from blink_persistent.engines.tensorrt.kernel_archive import CompiledKernel, Role, pack_kernels

TESTS = Path(__file__).parents[3]
NATIVE = TESTS / "native" / "tensorrt"
SOURCES = TESTS.parent / "backends" / "blink_persistent" / "csrc" / "tensorrt"
COMPILER = os.environ.get("CXX") or shutil.which("g++") or "c++"
FLAGS = ["-std=c++20", "-O0", "-Wall", "-Wextra", "-Werror", f"-I{NATIVE}", f"-I{SOURCES}"]

SHAPE = AttentionShape(heads=8, kv_heads=2, head_dim=64, block_size=64, programs=5, scale=0.25)
BUFFERS = Buffers(
    **{"queries": 16, "keys": 32, "values": 48, "key_pool": 64, "value_pool": 80, "tables": 96},
    **{"lengths": 112, "starts": 128, "cu_seqlens": 144, "out": 160, "workspace": 1 << 20},
)


def kernel(role: Role, variant: int) -> CompiledKernel:
    shared = 60_000 if role == Role.ATTEND_PACKED else 1024
    name = f"{role.name.lower()}_{variant}"
    return CompiledKernel(role, variant, 4, shared, name, name.encode() * 3)


KERNELS = [
    kernel(Role.APPEND_ROWS, 0),
    kernel(Role.APPEND_PACKED, 0),
    *(kernel(Role.ATTEND_ROWS, splits) for splits in (1, 2, 4, 8, 16, 32, 64)),
    *(kernel(Role.COMBINE_ROWS, splits) for splits in (2, 4, 8, 16, 32, 64)),
    *(kernel(Role.ATTEND_PACKED, tile) for tile in (16, 32, 64, 128)),
]
PROCESSORS = 64

Drive = Callable[..., str]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the plugin library, who drives it, and the driver."""
    directory = tmp_path_factory.mktemp("plugin")
    shared = ["-shared", "-fPIC"]
    for source, output, options in (
        (SOURCES / "paged_attention.cc", "libblink_tensorrt.so", [*shared, "-ldl"]),
        (NATIVE / "libcuda.cc", "libcuda.so.1", shared),
        (NATIVE / "drive_plugin.cc", "drive", ["-ldl"]),
    ):
        command = [COMPILER, *FLAGS, str(source), "-o", str(directory / output), *options]
        subprocess.run(command, check=True)
    return directory


@pytest.fixture
def drive(built: Path, tmp_path: Path) -> Drive:
    def run(*command: object, archive: bytes = pack_kernels(KERNELS), status: int = 0) -> str:
        (tmp_path / "archive").write_bytes(archive)
        library = str(built / "libblink_tensorrt.so")
        done = subprocess.run(
            [built / "drive", library, tmp_path / "archive", *map(str, command)],
            env={**os.environ, "LD_LIBRARY_PATH": str(built)},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        assert done.returncode == status, done.stdout
        return done.stdout

    return run


def as_word(value: int | float) -> int:
    """As it lies in the low bytes of a word."""
    if isinstance(value, float):
        return int.from_bytes(struct.pack("<f", value), "little")
    return value


def in_python(tokens: int, sequences: int, max_blocks: int) -> list[str]:
    launches = attention_launches(
        SHAPE,
        KERNELS,
        BUFFERS,
        tokens=tokens,
        sequences=sequences,
        max_blocks=max_blocks,
        processors=PROCESSORS,
    )
    return [
        f"{launch.kernel.name} {' '.join(map(str, launch.grid))} : "
        + " ".join(str(as_word(value)) for value, _ in launch.arguments)
        for launch in launches
    ]


@pytest.mark.parametrize("max_blocks", [1, 2, 7, 64])
def test_both_launch_the_same(drive: Drive, max_blocks: int) -> None:
    steps = [(rows, rows) for rows in (1, 2, 3, 7, 16, 63, 64, 256)]
    steps += [(16, 1), (17, 3), (64, 8), (100, 2), (2048, 8)]
    for tokens, sequences in steps:
        found = drive("launches", tokens, sequences, max_blocks).splitlines()
        assert found == in_python(tokens, sequences, max_blocks)


def test_it_is_the_plugin_that_python_describes(drive: Drive) -> None:
    archive = pack_kernels(KERNELS)
    assert drive("describe").splitlines() == [
        "PagedAttention 1 blink outputs 3",
        f"aliases -1 3 4 workspace {workspace_bytes(SHAPE, KERNELS, 3)}",
        "field shape 6",
        "field scale 1",
        f"field kernels {len(archive)}",
    ]


def test_a_context_loads_every_kernel_once_and_a_step_launches_some(drive: Drive) -> None:
    told = drive("enqueue", 3, 3, 64).splitlines()
    loads = [line.removeprefix("load ") for line in told if line.startswith("load ")]
    assert loads == [kernel.name for kernel in KERNELS]
    large = [line for line in told if line.startswith("attribute ")]
    assert large == [f"attribute attend_packed_{tile} 8 60000" for tile in (16, 32, 64, 128)]
    assert [line for line in told if line.startswith("launch ")] == [
        "launch append_rows_0 3 2 1 threads 128 shared 1024 stream 77 first 8192",
        "launch attend_rows_32 3 2 32 threads 128 shared 1024 stream 77 first 4096",
        "launch combine_rows_32 24 1 1 threads 128 shared 1024 stream 77 first 1048576",
    ]
    assert told[-1] == "status 0"


def test_nothing_is_launched_while_tensorrt_builds(drive: Drive) -> None:
    assert drive("building", 3, 3, 64) == "status 0\n"


@pytest.mark.parametrize(
    ("command", "reason"),
    [("copied", "KV memory as a copy"), ("unaligned", "not aligned to 16 bytes")],
)
def test_memory_that_would_lose_entries_is_refused(drive: Drive, command: str, reason: str) -> None:
    told = drive(command)
    assert "error PagedAttention: TensorRT gave" in told
    assert reason in told
    assert told.endswith("status -1\n")
    assert "launch" not in told


@pytest.mark.parametrize(
    ("command", "archive", "reason"),
    [
        ("describe", pack_kernels(KERNELS)[:-1], "the attention's kernels are not whole"),
        ("describe", b"\1\0\0\0", "the attention's kernels are not whole"),
        ("fieldless", pack_kernels(KERNELS), "the plan's layer has no field scale"),
        (
            "enqueue",
            pack_kernels([CompiledKernel(Role.APPEND_ROWS, 0, 1, 0, "a", b"bad code")]),
            "cuModuleLoadData: CUDA_ERROR_OF_THE_TEST",
        ),
    ],
)
def test_a_plan_that_is_not_whole_makes_no_plugin(
    drive: Drive, command: str, archive: bytes, reason: str
) -> None:
    assert reason in drive(command, archive=archive, status=1)
