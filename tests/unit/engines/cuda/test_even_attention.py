"""Attention in even shares computes what numpy computes, lane by lane on a host; it compiles."""

from __future__ import annotations

import random
import shutil
from functools import partial

import pytest

from blink_persistent.engines.cuda.kernels.cuts.attention_call import MOST_GROUP, AttentionCall
from blink_persistent.engines.cuda.kernels.cuts.even_attention_cut import EvenCut, even_code
from blink_persistent.gpu import compile as device_code
from blink_persistent.gpu.structs import layout_assertions
from blink_persistent.testing.attention_problem import AttentionCase, AttentionProblem
from blink_persistent.testing.primed_host import HostAttention, Way

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
CUTS = [EvenCut(warps=4, pairs=2, resident=2), EvenCut(warps=8, pairs=2, resident=1)]
WAYS = [Way(late, seed) for late in (False, True) for seed in (1, 2)]

# And blocks: shares that are groups, parts of them, several, and none.
CASES = {
    "a few blocks": (AttentionCase(), 3),
    "one block": (AttentionCase(), 1),
    "more blocks than pages": (AttentionCase(), 40),
    "borders of pages": (
        AttentionCase(lengths=(290, 65, 64, 2, 129, 66), parts=2, block_size=64),
        7,
    ),
    "a group in many blocks": (AttentionCase(lengths=(290,), parts=2, block_size=64), 9),
    "more pages than there is room for": (
        AttentionCase(lengths=(1100, 900), heads=2, kv_heads=1, parts=1, block_size=128),
        2,
    ),
    "the smallest blocks of the KV": (
        AttentionCase(lengths=(150, 0, 0, 17), parts=1, block_size=16),
        4,
    ),
    "large blocks of the KV, norms of heads": (
        AttentionCase(lengths=(257, 193), normed=True, kv_heads=1, block_size=128),
        5,
    ),
    "the largest blocks of the KV": (AttentionCase(lengths=(299, 70), block_size=256), 6),
    "a bias": (AttentionCase(lengths=(49,), biased=True, heads=7, kv_heads=1), 2),
    "short heads": (AttentionCase(lengths=(65, 16, 130), head_dim=64, heads=9, kv_heads=3), 4),
    "some of a step's tokens": (AttentionCase(lengths=(70, 0, 1), others=7), 3),
    "some that the library projected": (
        AttentionCase(parts=1, rounded=True, others=5, biased=True, normed=True),
        3,
    ),
    "short heads that the library projected": (
        AttentionCase(lengths=(65, 16), head_dim=64, heads=9, kv_heads=3, parts=1, rounded=True),
        4,
    ),
}


@pytest.fixture(scope="module")
def attentions() -> dict[int, HostAttention]:
    return {size: HostAttention(CUTS, size) for size in (64, 128)}


def problem_of(case: AttentionCase, blocks: int) -> AttentionProblem:
    """With NaN in what is no row's entry."""
    problem = AttentionProblem(case, parts=blocks * 2 * MOST_GROUP)
    problem.spoil_the_rest()
    return problem


@needs_compiler
@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_a_rows_new_token_attends_to_all_its_entries(
    attentions: dict[int, HostAttention], name: str, cut: EvenCut
) -> None:
    case, blocks = CASES[name]
    for way in WAYS:
        problem = problem_of(case, blocks)
        attention, call = attentions[case.head_dim], problem.call()
        problem.check(partial(attention.run_even, cut, call, problem.blocks, blocks, way))


@needs_compiler
@pytest.mark.parametrize(("rows", "blocks"), [(64, 37), (33, 131), (64, 128)])
def test_up_to_64_rows_of_any_lengths(
    attentions: dict[int, HostAttention], rows: int, blocks: int
) -> None:
    chosen = random.Random(rows)
    lengths = tuple(chosen.choice([0, 1, 2, 64, 65, 66, 130]) for _ in range(rows))
    problem = problem_of(AttentionCase(lengths=lengths, parts=1, heads=4), blocks)
    call, run = problem.call(), attentions[128].run_even
    problem.check(partial(run, CUTS[0], call, problem.blocks, blocks))


@needs_compiler
@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("part", [0, 1], ids=["keys", "values"])
@pytest.mark.parametrize("bad", [slice(40, 41), slice(0, 100)], ids=["one", "all"])
@pytest.mark.parametrize("blocks", [1, 3, 11])
def test_entries_that_are_no_numbers_are_their_own_rows_alone(
    attentions: dict[int, HostAttention], cut: EvenCut, part: int, bad: slice, blocks: int
) -> None:
    problem = problem_of(AttentionCase(lengths=(101, 0, 1, 39)), blocks)
    run = partial(attentions[128].run_even, cut, problem.call(), problem.blocks, blocks)
    problem.check_no_numbers(run, part, range(101)[bad])


@needs_compiler
def test_a_kernel_has_the_shared_memory_that_it_is_launched_with(
    attentions: dict[int, HostAttention],
) -> None:
    for attention in attentions.values():
        attention.check_shared_bytes(CUTS)


def test_a_cut_fits_where_all_its_blocks_have_room() -> None:
    assert EvenCut(warps=8, pairs=6, resident=1).fits(128, 4)
    assert not EvenCut(warps=8, pairs=6, resident=1).fits(128, 8)
    assert EvenCut(warps=4, pairs=6, resident=1).fits(128, 8)
    assert not EvenCut(warps=4, pairs=6, resident=2).fits(128, 8)
    assert EvenCut(warps=4, pairs=3, resident=2).fits(128, 4)
    assert not EvenCut(warps=4, pairs=3, resident=3).fits(128, 4)
    assert not EvenCut(warps=6, pairs=3, resident=1).fits(128, 4)
    assert not EvenCut(warps=8, pairs=5, resident=1).fits(128, 4)
    assert not EvenCut(warps=4, pairs=9, resident=1).fits(64, 4)


def test_all_blocks_are_resident_and_are_many_for_even_shares() -> None:
    alone, two = (EvenCut(warps=4, pairs=2, resident=resident) for resident in (1, 2))
    assert [cut.blocks(131) for cut in (alone, two)] == [128, 256]
    assert [cut.blocks(113) for cut in (alone, two)] == [112, 224]
    assert [cut.blocks(3) for cut in (alone, two)] == [3, 6]


def test_the_kernels_compile_where_there_is_a_device_compiler(device_compiler: None) -> None:
    mirrors = layout_assertions([AttentionCall])
    for size in (64, 128):
        code = device_code.compile_program(
            "even_attention_gpu.cu",
            arch="sm_90",
            prologue=even_code(CUTS, size),
            epilogue=mirrors,
        )
        for cut in CUTS:
            assert cut.kernel_name(size).encode() in code
