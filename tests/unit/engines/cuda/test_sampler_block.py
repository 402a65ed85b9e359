"""The thread block's sampler chooses what the host's sampler chooses, whatever its lanes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import blink_persistent
from blink_persistent.gpu import compile as device_code
from blink_persistent.gpu.structs import EngineTables, layout_assertions
from blink_persistent.graph_grid import DECODE
from blink_persistent.samplers.default_cuda import SAMPLER_STRUCTS, DeviceSampler, blocks_of_row

HERE = Path(__file__).resolve().parent
INCLUDE = Path(blink_persistent.__path__[-1]) / "csrc" / "include"

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")


def build(directory: Path, *options: str) -> Path:
    program = directory / "sampler_lanes"
    flags = ["-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]
    flags += ["-pthread", f"-I{INCLUDE}"]
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
@pytest.mark.parametrize(
    ("lanes", "blocks", "width", "rows"),
    [
        pytest.param(1, 1, 1, 3000, id="one lane"),
        pytest.param(2, 1, 1, 600, id="two lanes"),
        pytest.param(5, 1, 1, 300, id="five lanes"),
        pytest.param(6, 1, 3, 300, id="groups"),
        pytest.param(6, 3, 1, 300, id="blocks"),
        pytest.param(8, 2, 2, 300, id="blocks of groups"),
    ],
)
def test_random_rows_are_sampled_as_on_the_host(
    sampler_lanes: str, lanes: int, blocks: int, width: int, rows: int
) -> None:
    counts = run(sampler_lanes, *map(str, (lanes, blocks, width, 10 + lanes, rows)))
    assert counts["drawn"] > rows // 2
    assert counts["refused"] > rows // 50
    assert counts["constrained"] > rows // 5
    assert counts["wrong"] == 0


@needs_compiler
@pytest.mark.parametrize(("blocks", "rows"), [(1, 40), (4, 16), (8, 8)])
def test_the_gpus_own_lanes_sample_as_the_host(sampler_lanes: str, blocks: int, rows: int) -> None:
    counts = run(sampler_lanes, *map(str, (0, blocks, 32, 10 + blocks, rows)))
    assert counts["drawn"] > rows // 2
    assert counts["wrong"] == 0


@needs_compiler
def test_lanes_do_not_race(tmp_path: Path) -> None:
    program = build(tmp_path, "-g", "-fsanitize=thread")
    # Thread sanitizer needs its shadow memory where address randomization may put other things.
    prefix = ["setarch", "-R"] if shutil.which("setarch") else []
    run(*prefix, str(program), *["3", "1", "1", "7", "40"])
    run(*prefix, str(program), *["8", "2", "2", "8", "20"])


@pytest.mark.usefixtures("device_compiler")
def test_the_kernel_compiles_where_there_is_a_device_compiler() -> None:
    mirrors = layout_assertions(SAMPLER_STRUCTS)
    code = device_code.compile_program("sampler_gpu.cu", arch="sm_90", epilogue=mirrors)
    assert b"blink_sample" in code
    assert b"blink_sample_clustered" in code


@pytest.mark.usefixtures("device_compiler")
def test_clusters_are_left_out_where_there_are_none() -> None:
    code = device_code.compile_program("sampler_gpu.cu", arch="sm_80")
    assert b"blink_sample" in code
    assert b"blink_sample_clustered" not in code


@pytest.mark.parametrize(("rows", "blocks"), [(1, 8), (16, 8), (17, 4), (64, 4), (65, 1), (256, 1)])
def test_a_row_has_more_blocks_where_there_are_fewer_rows(rows: int, blocks: int) -> None:
    assert blocks_of_row(rows) == blocks


class FakeGpu:
    """Keeps what is launched: kernel, blocks, threads of each and blocks of a cluster."""

    def __init__(self, arch: str, driver: Any) -> None:
        self.arch, self.driver = arch, driver
        self.launches: list[tuple[str, int, int, int]] = []

    def load(self, *_: object, **__: object) -> Any:
        return SimpleNamespace(function=lambda name: name)

    def place(self, _: object) -> int:
        return 4096

    def allocate(self, _: int) -> int:
        return 4096

    def launch(self, kernel: str, blocks: int, threads: int, *_: object) -> None:
        self.launches.append((kernel, blocks, threads, 1))

    def call(self, name: str, *arguments: Any) -> None:
        if name != "cuLaunchKernelEx":
            return
        config, kernel, *_ = arguments
        (together,) = config.attrs
        blocks = together.value.clusterDim.x
        self.launches.append((kernel, config.gridDimX, config.blockDimX, blocks))

    def enqueue(self, _function: object, _stream: object, launch: Any) -> None:
        launch()


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_clusters_are_launched_where_there_are_some(arch: str) -> None:
    driver = pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")
    gpu: Any = FakeGpu(arch, driver)
    sampler = DeviceSampler(gpu, EngineTables(vocabulary_size=1000), 0)
    for rows in (1, 64, 65):
        sampler.record(DECODE, rows, 0)
    alone = [("blink_sample", rows, 1024, 1) for rows in (1, 64, 65)]
    clustered = [("blink_sample_clustered", 8, 512, 8), ("blink_sample_clustered", 256, 512, 4)]
    assert gpu.launches == (alone if arch == "sm_80" else [*clustered, alone[2]])
