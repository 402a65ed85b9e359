from __future__ import annotations

from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blink_server.repository.harness import State
from blink_server.repository.policy import (
    Action,
    All,
    Generation,
    Latest,
    Load,
    Specific,
    Unload,
    VersionPolicy,
    next_actions,
    select_versions,
)


@pytest.mark.parametrize(
    ("policy", "selected"),
    [
        (Latest(), (10,)),
        (Latest(2), (9, 10)),
        (Latest(7), (1, 2, 9, 10)),
        (All(), (1, 2, 9, 10)),
        (Specific(frozenset({2, 1, 5})), (1, 2)),
        (Specific(frozenset({5})), ()),
    ],
)
def test_selects_by_number_not_by_text(policy: VersionPolicy, selected: tuple[int, ...]) -> None:
    assert select_versions(policy, [10, 9, 1, 2]) == selected


def test_selects_nothing_of_nothing() -> None:
    assert select_versions(Latest(3), []) == ()


def key(version: int, model: str = "m", content: str = "") -> Generation:
    return Generation(model, version, content)


def test_loads_all_wanted_newest_first() -> None:
    wanted = [key(1), key(2), key(1, "a")]
    assert next_actions(wanted, {}) == [Load(key(1, "a")), Load(key(2)), Load(key(1))]


def test_nothing_to_do_when_all_is_as_wanted() -> None:
    assert next_actions([key(1)], {key(1): State.READY}) == []


@pytest.mark.parametrize("successor", [None, State.LOADING, State.UNAVAILABLE, State.DRAINING])
def test_the_old_version_stays_until_its_successor_serves(successor: State | None) -> None:
    actual = {key(1): State.READY}
    if successor is not None:
        actual[key(2)] = successor
    assert Unload(key(1)) not in next_actions([key(2)], actual)


def test_the_old_version_goes_when_its_successor_serves() -> None:
    actual = {key(1): State.READY, key(2): State.READY}
    assert next_actions([key(2)], actual) == [Unload(key(1))]


def test_the_old_version_waits_for_all_successors_to_settle() -> None:
    actual = {key(1): State.READY, key(2): State.READY, key(3): State.LOADING}
    assert next_actions([key(2), key(3)], actual) == []
    actual[key(3)] = State.UNAVAILABLE
    assert next_actions([key(2), key(3)], actual) == [Unload(key(1))]


@pytest.mark.parametrize("state", [State.READY, State.LOADING, State.UNAVAILABLE])
def test_a_model_that_is_gone_is_unloaded_whatever_others_do(state: State) -> None:
    wanted = [key(1, "other")]
    assert next_actions(wanted, {key(1): state}) == [Load(key(1, "other")), Unload(key(1))]


@pytest.mark.parametrize("state", [State.LOADING, State.UNAVAILABLE])
def test_an_unwanted_version_that_serves_nobody_goes_at_once(state: State) -> None:
    actual = {key(1): state, key(2): State.LOADING}
    assert next_actions([key(2)], actual) == [Unload(key(1))]


@pytest.mark.parametrize("state", [State.DRAINING, State.UNLOADING])
def test_a_version_on_its_way_out_is_neither_unloaded_nor_loaded_again(state: State) -> None:
    assert next_actions([], {key(1): state}) == []
    assert next_actions([key(1)], {key(1): state}) == []


def test_an_unavailable_version_is_left_to_its_own_retry() -> None:
    assert next_actions([key(1)], {key(1): State.UNAVAILABLE}) == []


def test_changed_files_go_only_to_what_serves_instead() -> None:
    old, new = key(1, content="a"), key(1, content="b")
    assert next_actions([new], {old: State.READY}) == [Load(new)]
    for state in (State.LOADING, State.UNAVAILABLE):
        assert next_actions([new], {old: State.READY, new: state}) == []
    assert next_actions([new], {old: State.READY, new: State.READY}) == [Unload(old)]


def test_a_version_does_not_go_for_another_version_while_its_own_next_fails() -> None:
    old, new, other = key(1, content="a"), key(1, content="b"), key(2)
    actual = {old: State.READY, new: State.UNAVAILABLE, other: State.READY}
    assert next_actions([new, other], actual) == []


def test_a_model_of_which_nothing_is_known_keeps_what_it_has() -> None:
    actual = {key(1): State.READY, key(2): State.UNAVAILABLE}
    assert next_actions([], actual, held={"m"}) == []


@pytest.mark.parametrize("state", [State.LOADING, State.UNAVAILABLE])
def test_what_has_served_is_started_again_until_its_successor_serves(state: State) -> None:
    actual = {key(1): state, key(2): State.UNAVAILABLE}
    assert next_actions([key(2)], actual, proven=[key(1)]) == []
    actual[key(2)] = State.READY
    assert next_actions([key(2)], actual, proven=[key(1)]) == [Unload(key(1))]


def test_what_serves_goes_for_a_successor_that_gets_no_memory_otherwise() -> None:
    actual = {key(1): State.READY, key(2): State.UNAVAILABLE}
    assert next_actions([key(2)], actual, starved=[key(2)]) == [Unload(key(1))]
    assert next_actions([key(2)], actual, starved=[key(1, "other")]) == []


CAPACITY = 3


class World:
    """A manager reduced to states: actions take effect, loads end as drawn or for lack of memory.

    Every generation takes one unit of `CAPACITY`; models whose name is "u" unload first.
    """

    def __init__(self, capacity: int = 1000) -> None:
        self.capacity = capacity
        self.actual: dict[Generation, State] = {}
        self.proven: set[Generation] = set()
        self.starved: set[Generation] = set()

    def next_actions(self, wanted: Collection[Generation]) -> list[Action]:
        return next_actions(wanted, self.actual, proven=self.proven, starved=self.starved)

    @property
    def used(self) -> int:
        held = (State.LOADING, State.READY, State.DRAINING)
        return sum(state in held for state in self.actual.values())

    def apply(self, action: Action) -> None:
        match action:
            case Load(generation):
                assert generation not in self.actual
                self.begin(generation)
            case Unload(generation):
                del self.actual[generation]
                self.proven.discard(generation)
                self.starved.discard(generation)

    def begin(self, generation: Generation) -> None:
        """A load, or a retry: admitted if it fits."""
        fits = self.used < self.capacity
        self.actual[generation] = State.LOADING if fits else State.UNAVAILABLE
        self.starved.discard(generation)
        if not fits and generation.model == "u":
            self.starved.add(generation)

    def finish_one_load(self, succeeds: bool) -> bool:
        loading = [each for each, state in self.actual.items() if state is State.LOADING]
        if not loading:
            return False
        self.actual[loading[0]] = State.READY if succeeds else State.UNAVAILABLE
        if succeeds:
            self.proven.add(loading[0])
        return True

    def retry_all(self) -> bool:
        """The back-off of every UNAVAILABLE generation is over."""
        before = dict(self.actual)
        for generation, state in before.items():
            if state is State.UNAVAILABLE:
                self.begin(generation)
        return self.actual != before

    def serving(self) -> set[str]:
        return {each.model for each, state in self.actual.items() if state is State.READY}


def one_content_each(generations: Collection[Generation]) -> set[Generation]:
    return set({each.key: each for each in sorted(generations)}.values())


generations = st.builds(key, st.integers(1, 4), st.sampled_from("ab"), st.sampled_from("xy"))
wanted_sets = st.sets(generations).map(one_content_each)


@given(wants=st.lists(wanted_sets, min_size=1, max_size=6), data=st.data())
def test_a_wanted_model_that_serves_never_stops_serving(
    wants: list[set[Generation]], data: st.DataObject
) -> None:
    world = World()
    for wanted in wants:
        wanted_models = {version.model for version in wanted}
        while True:
            actions = world.next_actions(wanted)
            loads = [isinstance(action, Load) for action in actions]
            assert loads == sorted(loads, reverse=True)
            for action in actions:
                served = world.serving()
                world.apply(action)
                assert served & wanted_models <= world.serving()
            if not world.finish_one_load(data.draw(st.booleans())):
                break
            if data.draw(st.booleans()):
                break  # the wanted set changes in the middle of the loads
    while world.next_actions(wanted) or world.finish_one_load(succeeds=True):
        for action in world.next_actions(wanted):
            world.apply(action)
    assert wanted <= world.actual.keys()
    for old in world.actual.keys() - wanted:
        own = [each for each in wanted if each.key == old.key]
        followers = own or [each for each in wanted if each.model == old.model]
        assert followers
        assert State.READY not in {world.actual[each] for each in followers}


@given(wants=st.lists(wanted_sets, min_size=1, max_size=6), data=st.data())
def test_when_loads_succeed_what_is_wanted_is_all_there_is(
    wants: list[set[Generation]], data: st.DataObject
) -> None:
    world = World()
    for wanted in wants:
        for _ in range(data.draw(st.integers(0, 5))):
            for action in world.next_actions(wanted):
                world.apply(action)
            world.finish_one_load(data.draw(st.booleans()))
    converge(world, wanted)
    assert world.actual == dict.fromkeys(wanted, State.READY)


@given(
    wants=st.lists(
        st.sets(st.builds(key, st.integers(1, 3), st.sampled_from("uv"), st.sampled_from("xy")))
        .map(one_content_each)
        .filter(lambda wanted: len(wanted) <= CAPACITY),
        min_size=1,
        max_size=6,
    )
)
def test_memory_is_never_exceeded_and_unload_first_always_gets_through(
    wants: list[set[Generation]],
) -> None:
    world = World(CAPACITY)
    for wanted in wants:
        converge(world, wanted)
        assert world.used <= CAPACITY
        states = {each: world.actual[each] for each in wanted}
        for each, state in states.items():
            # Without leave to unload first, a model may wait for what serves of it to go.
            assert state is State.READY or _is_blocked(each, world, wanted)


def _is_blocked(generation: Generation, world: World, wanted: Collection[Generation]) -> bool:
    others_stay = any(each.model == "v" for each in world.actual if each not in wanted)
    return world.used == CAPACITY and (generation.model == "v" or others_stay)


def converge(world: World, wanted: Collection[Generation]) -> None:
    """Act, load and retry until nothing changes any more."""
    for _ in range(200):
        actions = world.next_actions(wanted)
        for action in actions:
            world.apply(action)
            assert world.used <= world.capacity
        if not actions and not world.finish_one_load(succeeds=True) and not world.retry_all():
            return
    raise AssertionError("it goes on for ever")
