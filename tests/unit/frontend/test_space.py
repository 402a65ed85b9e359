from __future__ import annotations

import pytest

from blink_persistent.frontend.space import SlotPool, Space
from blink_server.errors import InvalidRequest, Overloaded


def test_slots_are_taken_lowest_first_and_high_follows_them() -> None:
    pool = SlotPool(4)
    assert [pool.take() for _ in range(3)] == [0, 1, 2]
    assert pool.high == 3
    pool.give(0)
    assert pool.high == 3
    assert pool.take() == 0
    pool.give(1)
    pool.give(2)
    assert pool.high == 1
    pool.give(0)
    assert pool.high == 0
    assert [pool.take() for _ in range(5)] == [0, 1, 2, 3, None]


def test_a_place_that_is_not_had_whole_is_not_had_at_all() -> None:
    space = Space(slots=2, prompt_words=100, output_words=100, aux_words=10)
    place = space.take(prompt_words=50, output_words=50, aux_words=10)
    for too_much in ((60, 1, 0), (50, 60, 0), (50, 50, 1)):
        with pytest.raises(Overloaded):
            space.take(prompt_words=too_much[0], output_words=too_much[1], aux_words=too_much[2])
    second = space.take(prompt_words=50, output_words=50, aux_words=0)
    assert (second.slot, second.aux) == (1, None)
    with pytest.raises(Overloaded, match="slot"):
        space.take(prompt_words=1, output_words=1, aux_words=0)
    space.give(place)
    space.give(second)
    whole = space.take(prompt_words=100, output_words=100, aux_words=10)
    assert (whole.slot, whole.prompt, whole.output, whole.aux) == (0, 0, 0, 0)


def test_what_can_never_fit_is_not_a_matter_of_load() -> None:
    space = Space(slots=1, prompt_words=100, output_words=100, aux_words=10)
    for words, param in (
        ((101, 1, 0), "prompt"),
        ((1, 101, 0), "max_tokens"),
        ((1, 1, 11), "logit_bias"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            space.take(prompt_words=words[0], output_words=words[1], aux_words=words[2])
        assert caught.value.param == param
    assert space.slots.high == 0
