from __future__ import annotations

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


class World:
    """A manager reduced to states: actions take effect, loads end as `outcomes` say."""

    def __init__(self) -> None:
        self.actual: dict[Generation, State] = {}

    def apply(self, action: Action) -> None:
        match action:
            case Load(version):
                assert version not in self.actual
                self.actual[version] = State.LOADING
            case Unload(version):
                del self.actual[version]

    def finish_one_load(self, succeeds: bool) -> bool:
        loading = [version for version, state in self.actual.items() if state is State.LOADING]
        if not loading:
            return False
        self.actual[loading[0]] = State.READY if succeeds else State.UNAVAILABLE
        return True

    def serving(self) -> set[str]:
        return {version.model for version, state in self.actual.items() if state is State.READY}


keys = st.builds(key, st.integers(1, 4), st.sampled_from("ab"))


@given(wants=st.lists(st.sets(keys), min_size=1, max_size=6), data=st.data())
def test_a_wanted_model_that_serves_never_stops_serving(
    wants: list[set[Generation]], data: st.DataObject
) -> None:
    world = World()
    for wanted in wants:
        wanted_models = {version.model for version in wanted}
        while True:
            actions = next_actions(wanted, world.actual)
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
    while next_actions(wanted, world.actual) or world.finish_one_load(succeeds=True):
        for action in next_actions(wanted, world.actual):
            world.apply(action)
    assert wanted <= world.actual.keys()
    for version in world.actual.keys() - wanted:
        successors = [world.actual[each] for each in wanted if each.model == version.model]
        assert successors
        assert State.READY not in successors
