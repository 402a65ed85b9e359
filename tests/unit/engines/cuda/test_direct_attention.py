"""Attention without a ring computes what numpy computes, lane by lane on a host; it compiles."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial

import pytest

from blink_persistent.engines.cuda.architectures import ARCHITECTURES
from blink_persistent.engines.cuda.kernels.cuts.attention_call import AttentionCall, attends_ahead
from blink_persistent.engines.cuda.kernels.cuts.direct_attention_cut import DirectCut, direct_code
from blink_persistent.gpu import compile as device_code
from blink_persistent.gpu.structs import layout_assertions
from blink_persistent.testing.attention_problem import AttentionCase, AttentionProblem
from blink_persistent.testing.primed_host import HostAttention

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
DIRECT, CLUSTERED = DirectCut(warps=2), DirectCut(warps=3, clustered=True)
CUTS = [DIRECT, CLUSTERED]
SEEDS = (1, 2, 3)

CASES = {
    "one split": AttentionCase(),
    "several splits": AttentionCase(splits=3),
    "more splits than tiles": AttentionCase(lengths=(20, 2, 290), splits=7, parts=1),
    "more than are added at once": AttentionCase(lengths=(290, 5, 0, 77), splits=11, parts=6),
    "a bias": AttentionCase(lengths=(49,), biased=True, heads=7, kv_heads=1),
    "norms of heads": AttentionCase(lengths=(48, 17), normed=True, heads=8, kv_heads=1, splits=2),
    "short heads": AttentionCase(lengths=(65, 16), head_dim=64, heads=9, kv_heads=3, splits=2),
    "some of a step's tokens": AttentionCase(lengths=(70, 0, 1), others=7, splits=2),
    "the smallest blocks": AttentionCase(lengths=(100, 17, 16), splits=3, block_size=16),
    "large blocks": AttentionCase(lengths=(290, 128, 129), splits=2, block_size=128),
    "one head a group": AttentionCase(lengths=(40,), head_dim=64, heads=2, kv_heads=2, normed=True),
}


@pytest.fixture(scope="module")
def attentions() -> dict[int, HostAttention]:
    return {size: HostAttention(CUTS, size) for size in (64, 128)}


@needs_compiler
@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_a_rows_new_token_attends_to_all_its_entries(
    attentions: dict[int, HostAttention], name: str, cut: DirectCut
) -> None:
    for seed in SEEDS:
        problem = AttentionProblem(CASES[name])
        call, attention = problem.call(), attentions[problem.case.head_dim]
        problem.check(partial(attention.run_direct, cut, call, problem.blocks, seed))


@needs_compiler
@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("part", [0, 1], ids=["keys", "values"])
@pytest.mark.parametrize("bad", [slice(40, 41), slice(0, 100)], ids=["one", "all"])
@pytest.mark.parametrize("splits", [1, 3, 11])
def test_entries_that_are_no_numbers_are_their_own_rows_alone(
    attentions: dict[int, HostAttention], cut: DirectCut, part: int, bad: slice, splits: int
) -> None:
    """And NaN in what is no row's entry has no effect."""
    problem = AttentionProblem(AttentionCase(lengths=(101, 0, 1, 39), splits=splits))
    run = partial(attentions[128].run_direct, cut, problem.call(), problem.blocks)
    problem.check_no_numbers(run, part, range(101)[bad])


@needs_compiler
def test_a_kernel_has_the_shared_memory_that_it_is_launched_with(
    attentions: dict[int, HostAttention],
) -> None:
    for attention in attentions.values():
        attention.check_shared_bytes(CUTS)


@pytest.mark.parametrize(("rows", "kv_heads"), [(1, 8), (16, 8), (64, 3), (1000, 8)])
def test_splits_fill_the_processors_and_no_more(rows: int, kv_heads: int) -> None:
    splits = DirectCut(programs=3).splits(rows, kv_heads, 1 << 20, 131)
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


def test_groups_of_up_to_eight_heads_of_two_sizes_are_attended_to() -> None:
    shape = ARCHITECTURES["llama-3-8b"]
    for kv_heads, size, known in ((4, 128, True), (4, 64, True), (4, 96, False), (2, 128, False)):
        assert attends_ahead(replace(shape, kv_heads=kv_heads, head_dim=size)) == known


def test_the_kernels_compile_where_there_is_a_device_compiler(device_compiler: None) -> None:
    code = device_code.compile_program(
        "direct_attention_gpu.cu",
        arch="sm_90",
        prologue=direct_code(CUTS, 128),
        epilogue=layout_assertions([AttentionCall]),
    )
    for cut in CUTS:
        assert cut.kernel_name(128).encode() in code
