"""Attention in CUDA C++ computes what numpy computes, lane by lane on a host; it compiles."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from blink_persistent.engines.cuda.kernels.direct_attention_cut import DirectCut, direct_code
from blink_persistent.engines.cuda.kernels.primed_attention_cut import (
    AttentionCall,
    AttentionCut,
    attention_code,
)
from blink_persistent.gpu import compile as device_code
from blink_persistent.gpu.structs import layout_assertions
from blink_persistent.testing.primed_host import HostAttention, Way, bfloat16, float32

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
DIRECT, CLUSTERED = DirectCut(warps=2), DirectCut(warps=3, clustered=True)
CUTS = (
    *(AttentionCut(warps=2, stages=1), AttentionCut(warps=2, stages=2), AttentionCut(warps=3)),
    *(DIRECT, CLUSTERED),
)
WAYS = [Way(late, seed) for late in (False, True) for seed in (1, 2)]
PAGES, CONTEXT = 44, 300
EPSILON = 1e-5
NAN = 0x7FC0  # of a bfloat16
Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Case:
    lengths: tuple[int, ...] = (100, 0, 1, 33)
    heads: int = 8
    kv_heads: int = 2
    head_dim: int = 128
    parts: int = 3
    splits: int = 1
    biased: bool = False
    normed: bool = False
    block_size: int = 32


CASES = {
    "one split": Case(),
    "several splits": Case(splits=3),
    "more splits than tiles": Case(lengths=(20, 2, 290), splits=7, parts=1),
    "more than are added at once": Case(lengths=(290, 5, 0, 77), splits=11, parts=6),
    "a bias": Case(lengths=(49,), biased=True, heads=7, kv_heads=1),
    "norms of heads": Case(lengths=(48, 17), normed=True, heads=8, kv_heads=1, splits=2),
    "short heads": Case(lengths=(65, 16), head_dim=64, heads=9, kv_heads=3, splits=2),
    "the smallest blocks": Case(lengths=(100, 17, 16), splits=3, block_size=16),
    "large blocks": Case(lengths=(290, 128, 129), splits=2, block_size=128),
    "one head a group": Case(lengths=(40,), head_dim=64, heads=2, kv_heads=2, normed=True),
}


class Problem:
    """The arrays of one attention, and what numpy makes of them."""

    def __init__(self, case: Case) -> None:
        self.case = case
        rng = np.random.default_rng(5)
        rows, size = len(case.lengths), case.head_dim
        width = (case.heads + 2 * case.kv_heads) * size
        self.qkv = rng.standard_normal((case.parts, rows, width)).astype(np.float32)
        self.bias = bfloat16(rng.standard_normal(width))
        self.norms = [bfloat16(rng.random(size) + 0.5) for _ in range(2)]
        angle = rng.random((CONTEXT, size // 2)) * 7
        self.cos, self.sin = (turn(angle).astype(np.float32) for turn in (np.cos, np.sin))
        self.lengths = np.array(case.lengths, np.int32)
        self.positions = np.maximum(self.lengths - 1, 0).astype(np.int32)
        self.tables = rng.permutation(PAGES)[: 10 * rows].reshape(rows, 10).astype(np.int32)
        shape = PAGES, case.kv_heads, case.block_size, size
        self.pages = [bfloat16(rng.standard_normal(shape)) for _ in range(2)]
        self.partial = np.full((rows * case.heads, case.splits, size), np.nan, np.float32)
        self.log_sums = np.full((rows * case.heads, case.splits), np.nan, np.float32)
        self.arrived = np.zeros(rows * case.kv_heads, np.uint32)
        self.out = np.full((rows, case.heads, size), NAN, np.uint16)

    def place(self, row: int, position: int) -> tuple[Any, ...]:
        """Of a row's entry in the pages."""
        block, at = divmod(position, self.case.block_size)
        return self.tables[row, block], slice(None), at

    def call(self) -> AttentionCall:
        case = self.case
        named = {
            **{"qkv": self.qkv, "cos": self.cos, "sin": self.sin},
            **{"lengths": self.lengths, "tables": self.tables},
            **{"keys": self.pages[0], "values": self.pages[1], "partial": self.partial},
            **{"log_sums": self.log_sums, "arrived": self.arrived, "out": self.out},
        }
        if case.biased:
            named["bias"] = self.bias
        if case.normed:
            named["q_norm"], named["k_norm"] = self.norms
        return AttentionCall(
            **{name: array.ctypes.data for name, array in named.items()},
            scale=case.head_dim**-0.5 * np.log2(np.e),
            epsilon=EPSILON,
            parts=case.parts,
            rows=len(case.lengths),
            heads=case.heads,
            kv_heads=case.kv_heads,
            max_blocks=self.tables.shape[1],
            block_size=case.block_size,
            splits=case.splits,
        )

    def projected(self, row: int) -> tuple[Floats, Floats, Floats]:
        """Rotated queries and keys, and values, of a row's token, [heads, head_dim]."""
        case = self.case
        flat = self.qkv[:, row].sum(axis=0) + (float32(self.bias) if case.biased else 0)
        q, k, v = np.split(
            flat.reshape(-1, case.head_dim), [case.heads, case.heads + case.kv_heads]
        )
        if case.normed:
            q, k = (
                x / np.sqrt((x**2).mean(axis=1, keepdims=True) + EPSILON) * float32(gain)
                for x, gain in zip((q, k), self.norms, strict=True)
            )
        cos, sin = (np.tile(table[self.positions[row]], 2) for table in (self.cos, self.sin))
        swap = np.concatenate([-np.ones(case.head_dim // 2), np.ones(case.head_dim // 2)])
        q, k = (x * cos + np.roll(x, case.head_dim // 2, axis=1) * swap * sin for x in (q, k))
        return tuple(float32(bfloat16(x)) for x in (q, k, v))  # type: ignore[return-value]

    def expected(self, row: int) -> Floats:
        """The mixture, [heads, head_dim]."""
        case, length = self.case, self.case.lengths[row]
        q, k, v = self.projected(row)
        group, found = case.heads // case.kv_heads, []
        for head in range(case.heads):
            entries = [
                float32(pages)[self.tables[row], head // group].reshape(-1, case.head_dim)
                for pages in self.pages
            ]
            keys, values = (array[:length].copy() for array in entries)
            keys[-1], values[-1] = k[head // group], v[head // group]
            scores = keys @ q[head] / case.head_dim**0.5
            weights = np.exp(scores - scores.max())
            found.append(weights @ values / weights.sum())
        return np.array(found)


@pytest.fixture(scope="module")
def attentions() -> dict[int, HostAttention]:
    return {size: HostAttention(CUTS, size) for size in (64, 128)}


@needs_compiler
@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_a_rows_new_token_attends_to_all_its_entries(
    attentions: dict[int, HostAttention], name: str, cut: AttentionCut | DirectCut
) -> None:
    for way in WAYS:
        problem = Problem(CASES[name])
        before = [float32(pages).copy() for pages in problem.pages]
        expected = [problem.expected(r) if n else 0 for r, n in enumerate(problem.case.lengths)]
        attention = attentions[problem.case.head_dim]
        for _ in range(2):  # what blocks count is left as it was
            attention.run(cut, problem.call(), PAGES, way)
        for row, length in enumerate(problem.case.lengths):
            found = float32(problem.out[row])
            np.testing.assert_allclose(found, expected[row], atol=0.02, rtol=0.01)
            assert np.abs(found - expected[row]).mean() < 0.002
            if length:
                place = problem.place(row, length - 1)
                _, *appended = problem.projected(row)
                for old, pages, new in zip(before, problem.pages, appended, strict=True):
                    np.testing.assert_allclose(float32(pages)[place], new, rtol=2**-7, atol=1e-6)
                    old[place] = float32(pages)[place]
        for old, pages in zip(before, problem.pages, strict=True):
            np.testing.assert_array_equal(float32(pages), old)
        assert not problem.arrived.any()


@needs_compiler
@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("part", [0, 1], ids=["keys", "values"])
@pytest.mark.parametrize("bad", [slice(40, 41), slice(0, 100)], ids=["one", "all"])
@pytest.mark.parametrize("splits", [1, 3, 11])
def test_entries_that_are_no_numbers_are_their_own_rows_alone(
    attentions: dict[int, HostAttention],
    cut: AttentionCut | DirectCut,
    part: int,
    bad: slice,
    splits: int,
) -> None:
    """And NaN in what is no row's entry has no effect."""
    problem = Problem(Case(lengths=(101, 0, 1, 39), splits=splits))
    expected = [problem.expected(row) if n else 0 for row, n in enumerate(problem.case.lengths)]
    for pages in problem.pages:
        kept = pages.copy()
        pages[:] = NAN
        for row, length in enumerate(problem.case.lengths):
            for at in range(length):
                place = problem.place(row, at)
                pages[place] = kept[place]
    for at in range(101)[bad]:
        problem.pages[part][problem.place(0, at)] = NAN
    attentions[128].run(cut, problem.call(), PAGES)
    assert np.isnan(float32(problem.out[0])).all(), "the answer would look like one"
    for row in (1, 2, 3):
        np.testing.assert_allclose(float32(problem.out[row]), expected[row], atol=0.02, rtol=0.01)


@needs_compiler
def test_a_kernel_has_the_shared_memory_that_it_is_launched_with(
    attentions: dict[int, HostAttention],
) -> None:
    for size, attention in attentions.items():
        for cut in CUTS:
            for heads in (1, 5, 8):
                direct = isinstance(cut, DirectCut)
                given = cut.shared_bytes(size, heads) if direct else cut.shared_bytes(size)
                assert attention.shared_bytes(cut, heads) == given


@pytest.mark.parametrize(("rows", "kv_heads"), [(1, 8), (16, 8), (64, 3), (1000, 8)])
def test_splits_fill_the_processors_and_no_more(rows: int, kv_heads: int) -> None:
    splits = AttentionCut(programs=3).splits(rows, kv_heads, 1 << 20, 131)
    assert splits == 1 or rows * kv_heads * splits <= 3 * 131
    assert splits == 64 or rows * kv_heads * (splits + 1) > 3 * 131


def test_a_cluster_has_a_power_of_two_of_blocks() -> None:
    found = {
        CLUSTERED.splits(rows, 8, capacity, 131)
        for rows in range(1, 20)
        for capacity in (64, 1 << 20)
    }
    assert found == {1, 2, 4, 8, 16}
    assert DirectCut(most=8).splits(1, 8, 1 << 20, 131) == 8


def test_the_kernels_compile_where_there_is_a_device_compiler(device_compiler: None) -> None:
    mirrors = layout_assertions([AttentionCall])
    for source, cuts, text in (
        ("primed_attention_gpu.cu", [AttentionCut()], attention_code([AttentionCut()], 128)),
        ("direct_attention_gpu.cu", [DIRECT, CLUSTERED], direct_code([DIRECT, CLUSTERED], 128)),
    ):
        code = device_code.compile_program(source, arch="sm_90", prologue=text, epilogue=mirrors)
        for cut in cuts:
            assert cut.kernel_name(128).encode() in code
