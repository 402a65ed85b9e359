"""Versions that cannot be loaded: what the policy has serve in their place."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blink_server.repository.harness import State
from blink_server.repository.policy import (
    All,
    Generation,
    Latest,
    Load,
    Specific,
    VersionPolicy,
    next_actions,
    select_versions,
)


@pytest.mark.parametrize(
    ("policy", "broken", "selected"),
    [
        (Latest(), {3}, (2, 3)),
        (Latest(), {3, 2}, (1, 2, 3)),
        (Latest(), {3, 2, 1}, (1, 2, 3)),
        (Latest(), {2}, (3,)),
        (Latest(2), {2}, (1, 2, 3)),
        (Latest(5), {2}, (1, 2, 3)),
        (All(), {3}, (1, 2, 3)),
        (Specific(frozenset({3})), {3}, (3,)),
    ],
)
def test_the_next_lower_version_stands_in_for_a_broken_one(
    policy: VersionPolicy, broken: set[int], selected: tuple[int, ...]
) -> None:
    assert select_versions(policy, [1, 2, 3], broken) == selected


@given(
    st.integers(1, 4),
    st.sets(st.integers(1, 12)),
    st.sets(st.integers(1, 12)),
)
def test_the_highest_that_can_be_loaded_are_always_selected(
    count: int, available: set[int], broken: set[int]
) -> None:
    selected = select_versions(Latest(count), available, broken)
    good = sorted(available - broken)
    assert set(good[-count:]) == set(selected) - broken
    assert set(select_versions(Latest(count), available)) <= set(selected)
    # Nothing below the lowest version that is needed.
    assert len(good) < count or min(selected) == good[-count]


class World:
    """One model under `Latest`: a load of a version succeeds while `loadable` has it."""

    def __init__(self, count: int) -> None:
        self.policy = Latest(count)
        self.available: set[int] = set()
        self.loadable: set[int] = set()
        self.actual: dict[Generation, State] = {}
        self.proven: set[Generation] = set()
        self.broken: set[Generation] = set()

    @property
    def wanted(self) -> set[Generation]:
        broken = {each.version for each in self.broken}
        return {
            Generation("m", each) for each in select_versions(self.policy, self.available, broken)
        }

    def serving(self) -> set[int]:
        return {each.version for each, state in self.actual.items() if state is State.READY}

    def step(self) -> bool:
        """Act, then end one load, or try again what is broken; whether anything has changed."""
        before = dict(self.actual)
        for action in next_actions(self.wanted, self.actual, proven=self.proven):
            if isinstance(action, Load):
                self.actual[action.generation] = State.LOADING
            else:
                self._forget(action.generation)
        loading = [each for each, state in self.actual.items() if state is State.LOADING]
        for generation in loading[:1]:
            self._end_load(generation)
        return self.actual != before

    def retry(self) -> None:
        """The back-off of every version that could not be loaded is over."""
        for generation, state in self.actual.items():
            if state is State.UNAVAILABLE:
                self._end_load(generation)

    def _end_load(self, generation: Generation) -> None:
        if generation.version in self.loadable & self.available:
            self.actual[generation] = State.READY
            self.proven.add(generation)
            self.broken.discard(generation)
        else:
            self.actual[generation] = State.UNAVAILABLE
            self.broken.add(generation)

    def _forget(self, generation: Generation) -> None:
        del self.actual[generation]
        self.proven.discard(generation)
        self.broken.discard(generation)


versions = st.sets(st.integers(1, 5))


@given(st.integers(1, 2), st.lists(st.tuples(versions, versions), min_size=1, max_size=6))
def test_it_ends_with_the_highest_that_can_be_loaded_and_nothing_good_goes_before(
    count: int, changes: list[tuple[Collection[int], Collection[int]]]
) -> None:
    world = World(count)
    for available, loadable in changes:
        world.available, world.loadable = set(available), set(loadable)
        # What serves is in memory: it serves on, whatever its files have become.
        for _ in range(100):
            served = world.serving() & world.available
            changed = world.step()
            assert not served or world.serving()
            if not changed:
                world.retry()
                if not world.step():
                    break
        else:
            raise AssertionError("it goes on for ever")
        good = world.available & (world.loadable | world.serving())
        assert set(sorted(good)[-count:]) <= world.serving()
