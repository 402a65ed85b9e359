from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blink_persistent.frontend.arena import Arena

WORDS = 300


def longest_free(taken: dict[int, int]) -> int:
    """The longest free span of a `WORDS` arena with these spans taken, found the plain way."""
    free = [True] * WORDS
    for start, words in taken.items():
        free[start : start + words] = [False] * words
    return max((len(list(run)) for is_free, run in itertools.groupby(free) if is_free), default=0)


# A positive step allocates so many words; another gives back one of the spans taken.
steps = st.lists(st.one_of(st.integers(1, 60), st.integers(-1000, 0)), max_size=120)


@given(steps)
@settings(max_examples=150, deadline=None)
def test_every_free_word_can_be_had_and_none_twice(steps: list[int]) -> None:
    arena, taken = Arena(WORDS), dict[int, int]()
    for step in steps:
        if step > 0:
            start = arena.allocate(step)
            if start is None:
                assert longest_free(taken) < step
                continue
            assert 0 <= start <= WORDS - step
            assert all(
                start + step <= other or other + words <= start for other, words in taken.items()
            )
            taken[start] = step
        elif taken:
            start = sorted(taken)[-step % len(taken)]
            arena.free(start)
            del taken[start]
        assert arena.free_words == WORDS - sum(taken.values())
    for start in taken:
        arena.free(start)
    assert arena.allocate(WORDS) == 0, "neighbours are joined"


def test_equal_requests_reuse_the_space_that_was_freed_last() -> None:
    arena = Arena(10_000)
    spans = [arena.allocate(100) for _ in range(10)]
    for index in (3, 7):
        arena.free(spans[index])
    assert [arena.allocate(100), arena.allocate(100)] == [spans[7], spans[3]]


def test_a_span_of_the_same_class_is_found_behind_one_too_short() -> None:
    arena = Arena(300)
    long, wall, short = arena.allocate(143), arena.allocate(15), arena.allocate(142)
    assert wall is not None
    arena.free(long)
    arena.free(short)
    assert arena.allocate(143) == long


def test_refuses_what_it_did_not_give() -> None:
    arena = Arena(64)
    start = arena.allocate(16)
    assert start is not None
    with pytest.raises(ValueError, match="begins at word 5"):
        arena.free(5)
    arena.free(start)
    with pytest.raises(ValueError, match="begins at word 0"):
        arena.free(start)
    with pytest.raises(ValueError, match="1 word or more"):
        arena.allocate(0)


def test_longer_than_the_arena_is_none() -> None:
    assert Arena(64).allocate(65) is None
    assert Arena(64).allocate(1 << 40) is None
    assert Arena(0).allocate(1) is None
