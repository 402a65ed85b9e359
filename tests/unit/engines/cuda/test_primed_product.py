"""The product in CUDA C++ computes what numpy computes, lane by lane on a host; it compiles."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from blink_persistent.engines.cuda.architectures import ARCHITECTURES
from blink_persistent.engines.cuda.kernels.cuts.choices import ROW_TILES
from blink_persistent.engines.cuda.kernels.cuts.likely_cuts import (
    PROCESSORS,
    SHARED_BYTES,
    leaves_registers,
    primed_candidates,
    step_products,
)
from blink_persistent.engines.cuda.kernels.cuts.primed_cut import (
    PrimedCut,
    PrimedKernel,
    primed_code,
)
from blink_persistent.engines.cuda.kernels.cuts.primed_norm_cut import norm_code, norm_cut
from blink_persistent.gpu import compile as device_code
from blink_persistent.testing.primed_cuts import likely_cuts
from blink_persistent.testing.primed_host import HostProducts, Way, bfloat16, float32

CSRC = device_code.SOURCE_DIRECTORY

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

# Rows, output features, inner elements; several passes, tiles and blocks that are not full.
CASES = {
    "one row": (PrimedCut(blocks=2, splits=2, warps=2, stages=3), 1, 40, 512),
    "eight rows": (PrimedCut(blocks=3, warps=3, stages=2), 8, 130, 384),
    "the smallest": (PrimedCut(blocks=1, warps=1, windows=2, stages=2), 3, 16, 64),
    "more stages than steps": (PrimedCut(blocks=1, warps=4, stages=5), 5, 33, 128),
    "more blocks than tiles": (PrimedCut(blocks=5, splits=3, warps=2, stages=4), 2, 50, 384),
    "sixteen rows": (PrimedCut(blocks=2, splits=4, warps=2, windows=2, stages=4), 13, 70, 1024),
    "two tiles": (PrimedCut(blocks=2, warps=2, tiles=2, windows=2, stages=3), 29, 150, 256),
    "all rows": (PrimedCut(blocks=1, splits=2, warps=2, tiles=2, windows=2, stages=3), 64, 97, 256),
    "fifty rows": (PrimedCut(blocks=2, warps=2, tiles=2, windows=2, stages=3), 50, 64, 192),
}
GATED = {
    "one row": (PrimedCut(blocks=2, warps=3, stages=3, gated=True), 1, 56, 384),
    "the smallest": (PrimedCut(blocks=1, warps=1, windows=2, stages=2, gated=True), 8, 8, 64),
    "odd": (PrimedCut(blocks=3, warps=2, windows=2, stages=4, gated=True), 15, 83, 320),
    "all rows": (PrimedCut(blocks=2, warps=2, tiles=2, windows=2, gated=True), 64, 90, 256),
}
WAYS = [Way(late, seed) for late in (False, True) for seed in (1, 2)]


def row_tile(rows: int) -> int:
    return next(tile for tile in ROW_TILES if rows <= tile)


KERNELS = {
    *(PrimedKernel.of(cut, row_tile(rows)) for cut, rows, *_ in CASES.values()),
    *(PrimedKernel.of(cut, row_tile(rows)) for cut, rows, *_ in GATED.values()),
    *(PrimedKernel.of(CASES["eight rows"][0], tile) for tile in ROW_TILES),
}


@pytest.fixture(scope="module")
def products() -> HostProducts:
    return HostProducts(KERNELS)


@needs_compiler
@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_each_split_is_that_part_of_the_product(
    products: HostProducts, case: str, way: Way
) -> None:
    cut, rows, size, depth = CASES[case]
    rng = np.random.default_rng(rows)
    x = bfloat16(rng.standard_normal((rows, depth)))
    weight = bfloat16(rng.standard_normal((size, depth)) / depth**0.5)
    out = np.full((cut.splits, rows, size), np.nan, np.float32)
    addresses = x.ctypes.data, weight.ctypes.data, out.ctypes.data
    products.run(cut, row_tile(rows), (rows, size, depth), addresses, way)
    inputs, weights = (float32(a).reshape(len(a), cut.splits, -1) for a in (x, weight))
    np.testing.assert_allclose(out, np.einsum("rsk,nsk->srn", inputs, weights), atol=2e-5)


@needs_compiler
@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("case", GATED)
def test_gate_and_up_are_joined(products: HostProducts, case: str, way: Way) -> None:
    cut, rows, size, depth = GATED[case]
    rng = np.random.default_rng(rows)
    x = bfloat16(2 * rng.standard_normal((rows, depth)))
    weight = bfloat16(rng.standard_normal((2 * size, depth)) / depth**0.5)
    out = np.full((rows, size), 0x7FC0, np.uint16)
    addresses = x.ctypes.data, weight.ctypes.data, out.ctypes.data
    products.run(cut, row_tile(rows), (rows, size, depth), addresses, way)
    gate, up = np.split(float32(x) @ float32(weight).T, 2, axis=1)
    np.testing.assert_allclose(float32(out), gate / (1 + np.exp(-gate)) * up, rtol=2**-8, atol=1e-5)


@needs_compiler
def test_rows_of_the_tile_that_the_product_lacks_change_nothing(products: HostProducts) -> None:
    """The same rows, in a kernel for as many and in one for more, are the same to the bit."""
    cut, rows, size, depth = CASES["eight rows"]
    rng = np.random.default_rng(3)
    x, weight = (bfloat16(rng.standard_normal((n, depth))) for n in (rows, size))
    found = []
    for tile in ROW_TILES:
        out = np.full((1, rows, size), np.nan, np.float32)
        addresses = x.ctypes.data, weight.ctypes.data, out.ctypes.data
        products.run(cut, tile, (rows, size, depth), addresses)
        found.append(out)
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


@needs_compiler
def test_every_number_of_rows_is_computed_and_no_more(products: HostProducts) -> None:
    cut, _, size, depth = CASES["eight rows"]
    rng = np.random.default_rng(4)
    x, weight = (bfloat16(rng.standard_normal((n, depth))) for n in (ROW_TILES[-1], size))
    expected = float32(x) @ float32(weight).T
    for rows in range(1, len(x) + 1):
        out = np.full((rows + 1, size), np.nan, np.float32)
        addresses = x.ctypes.data, weight.ctypes.data, out.ctypes.data
        products.run(cut, row_tile(rows), (rows, size, depth), addresses)
        np.testing.assert_allclose(out[:rows], expected[:rows], rtol=1e-5, atol=1e-3)
        assert np.isnan(out[rows]).all()


@needs_compiler
def test_a_kernel_has_the_shared_memory_that_it_is_launched_with(products: HostProducts) -> None:
    for cut, rows, *_ in (*CASES.values(), *GATED.values()):
        kernel = PrimedKernel.of(cut, row_tile(rows))
        assert products.shared_bytes(kernel) == cut.shared_bytes(row_tile(rows))


@pytest.mark.parametrize("model", ARCHITECTURES)
def test_every_product_of_a_published_model_can_be_cut(model: str) -> None:
    cuts = likely_cuts(ARCHITECTURES[model])
    for product in step_products(ARCHITECTURES[model]):
        size, depth = product.shape
        for tile in ROW_TILES:
            cut = cuts[product.shape, tile]
            assert cut.fits(size // (2 if product.gated else 1), depth)
            assert cut.gated == product.gated
            assert cut.splits == 1 or product.in_parts
            assert cut.blocks * cut.splits <= PROCESSORS
            assert cut.shared_bytes(tile) <= SHARED_BYTES


@pytest.mark.parametrize("model", ["llama-3-8b", "qwen3-32b", "phi-4"])
def test_as_many_warps_multiply_as_keep_pace_with_the_memory(model: str) -> None:
    cuts = likely_cuts(ARCHITECTURES[model])
    assert all(cut.warps * cut.tiles >= 4 for cut in cuts.values())


def test_of_weights_of_one_shape_gate_and_up_have_the_cut() -> None:
    """As in Codestral-22B, whose vocabulary is twice its intermediate size."""
    sizes: dict[str, Any] = {"hidden_size": 6144, "intermediate_size": 16384, "heads": 48}
    shape = replace(ARCHITECTURES["mistral-7b-v0.3"], **sizes)
    gate_up, head = (shape.vocabulary_size, 6144), step_products(shape)[-1]
    assert head.shape == gate_up
    cuts = likely_cuts(shape)
    assert all(cuts[gate_up, tile].gated for tile in ROW_TILES)


def test_candidates_compute_all_features_of_the_head_in_blocks_of_about_a_size() -> None:
    shape = ARCHITECTURES["llama-3-8b"].vocabulary_size, 4096
    for cut in primed_candidates(shape, 64, gated=False, in_parts=False):
        tiles = -(-shape[0] // 16)
        assert 125 <= cut.blocks <= PROCESSORS
        assert -(-tiles // cut.blocks) <= 1.02 * tiles / cut.blocks


@pytest.fixture
def compiler_log() -> Callable[[str], str]:
    """Compiles for a GPU and tells what the assembler says of each kernel."""
    try:
        nvrtc, _ = device_code._libraries()
    except device_code.DeviceCodeError as missing:
        pytest.skip(f"no device compiler: {missing}")

    def compiled(text: str) -> str:
        _, program = nvrtc.nvrtcCreateProgram(text.encode(), b"kernels.cu", 0, None, None)
        options = ["--gpu-architecture=sm_90", "--std=c++17", "--ptxas-options=--verbose"]
        options += ["--relocatable-device-code=true", f"--include-path={CSRC / 'include'}"]
        given = [option.encode() for option in options]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(given), given)
        log = bytearray(nvrtc.nvrtcGetProgramLogSize(program)[1])
        nvrtc.nvrtcGetProgramLog(program, log)
        nvrtc.nvrtcDestroyProgram(program)
        assert status == nvrtc.nvrtcResult.NVRTC_SUCCESS, log.decode()
        return log.decode()

    return compiled


def registers_of(log: str) -> list[int]:
    """Of each kernel in the assembler's order."""
    return [int(count) for count in re.findall(r"Used (\d+) registers", log)]


@pytest.mark.parametrize("tile", ROW_TILES)
def test_hardly_anything_is_spilled(compiler_log: Callable[[str], str], tile: int) -> None:
    """Of Llama-3-8B's kernels: at most a few words of the loop's state."""
    cuts = likely_cuts(ARCHITECTURES["llama-3-8b"])
    kernels = {PrimedKernel.of(cut, tile) for (_, rows), cut in cuts.items() if rows == tile}
    source = (CSRC / "primed_product_gpu.cu").read_text()
    log = compiler_log(primed_code(kernels) + source)
    spilled = [int(count) for count in re.findall(r"(\d+) bytes spill stores", log)]
    assert len(spilled) == len(registers_of(log)) == len(kernels)
    assert max(spilled) <= (32 if tile == 64 else 0)


@pytest.mark.parametrize("tile", [32, 64])
def test_a_norm_is_resident_beside_products(compiler_log: Callable[[str], str], tile: int) -> None:
    """Of every published model: beside the one before it always, else the product behind the norm
    could not begin to load; beside the other one where `leaves_registers` says so.
    """
    norms, beside = dict[int, int](), set[tuple[PrimedKernel, int]]()
    source = (CSRC / "primed_norm_gpu.cu").read_text()
    for architecture in ARCHITECTURES.values():
        cuts, size = likely_cuts(architecture), architecture.hidden_size
        for product in step_products(architecture):
            cut = cuts[product.shape, tile]
            if leaves_registers(cut):
                beside.add((PrimedKernel.of(cut, tile), size))
            else:
                assert product.name not in ("output", "down")
        if size not in norms:
            warps, each = norm_cut(size)
            (count,) = registers_of(compiler_log(norm_code(warps, each) + source))
            norms[size] = allocated_registers(count, warps)
    kernels = sorted({kernel for kernel, _ in beside}, key=lambda kernel: kernel.definition)
    source = (CSRC / "primed_product_gpu.cu").read_text()
    for kernel in kernels:
        (count,) = registers_of(compiler_log(primed_code([kernel]) + source))
        left = (1 << 16) - allocated_registers(count, kernel.warps)
        assert all(norms[size] <= left for other, size in beside if other == kernel), kernel


def allocated_registers(count: int, warps: int) -> int:
    """That a block with so many a thread takes of its multiprocessor's."""
    return -(-count // 8) * 8 * 32 * warps


def test_the_kernels_compile_where_there_is_a_device_compiler(device_compiler: None) -> None:
    kernels = [PrimedKernel(8, 1, 8, 4, 6, False), PrimedKernel(7, 2, 64, 2, 6, True)]
    code = device_code.compile_program(
        "primed_product_gpu.cu", arch="sm_90", prologue=primed_code(kernels)
    )
    for kernel in kernels:
        assert kernel.name.encode() in code
