from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blink_server.repository.harness import ALLOWED, Harness, State, TransitionError

STEPS: dict[State, Callable[[Harness], object]] = {
    State.LOADING: Harness.load,
    State.READY: Harness.ready,
    State.DRAINING: Harness.drain,
    State.UNLOADING: Harness.unload,
    State.UNAVAILABLE: lambda harness: harness.unavailable("the runner died"),
}

PATHS = {
    State.UNAVAILABLE: [],
    State.LOADING: [State.LOADING],
    State.READY: [State.LOADING, State.READY],
    State.DRAINING: [State.LOADING, State.READY, State.DRAINING],
    State.UNLOADING: [State.LOADING, State.UNLOADING],
}


def harness_in(state: State) -> Harness:
    harness = Harness("m", 3)
    for step in PATHS[state]:
        STEPS[step](harness)
    assert harness.state is state
    return harness


def test_a_new_version_is_not_loaded() -> None:
    harness = Harness("m", 3)
    assert (harness.state, harness.reason, harness.epoch) == (State.UNAVAILABLE, "not loaded", 0)


@pytest.mark.parametrize(("before", "after"), list(itertools.product(State, State)))
def test_only_allowed_transitions_happen(before: State, after: State) -> None:
    harness = harness_in(before)
    seen: list[tuple[State, State]] = []
    harness.observe(lambda changed, previous: seen.append((previous, changed.state)))
    if after in ALLOWED[before]:
        STEPS[after](harness)
        assert harness.state is after
        assert seen == [(before, after)]
    else:
        reason = harness.reason
        with pytest.raises(
            TransitionError, match=rf"m:3 epoch \d {before}.* cannot become {after}"
        ):
            STEPS[after](harness)
        assert (harness.state, harness.reason, seen) == (before, reason, [])


def test_requests_are_stopped_before_the_runner_is() -> None:
    assert State.UNLOADING not in ALLOWED[State.READY]
    assert State.READY not in ALLOWED[State.DRAINING] | ALLOWED[State.UNLOADING]


def test_an_unavailable_version_says_why_until_it_loads_again() -> None:
    harness = harness_in(State.READY)
    harness.unavailable("runner exited: SIGKILL")
    assert harness.reason == "runner exited: SIGKILL"
    harness.load()
    assert harness.reason == ""


def test_a_reason_is_required() -> None:
    harness = harness_in(State.READY)
    with pytest.raises(ValueError, match="needs a reason"):
        harness.unavailable("")
    assert harness.state is State.READY


def test_epochs_go_on_from_the_last_one_known() -> None:
    harness = Harness("m", 3, epoch=7)
    assert harness.load() == 8
    harness.unavailable("no memory")
    assert harness.load() == 9


def test_observers_see_the_new_state_in_the_order_they_came() -> None:
    harness = Harness("m", 3)
    seen: list[tuple[str, State]] = []
    harness.observe(lambda changed, _: seen.append(("first", changed.state)))
    harness.observe(lambda changed, _: seen.append(("second", changed.state)))
    harness.load()
    assert seen == [("first", State.LOADING), ("second", State.LOADING)]


def test_an_observer_may_not_change_what_it_observes() -> None:
    harness = Harness("m", 3)
    harness.observe(lambda changed, _: changed.ready())
    with pytest.raises(TransitionError, match="an observer asked for READY"):
        harness.load()
    assert harness.state is State.LOADING


@given(st.lists(st.sampled_from(State), max_size=40))
def test_every_load_has_its_own_epoch(steps: list[State]) -> None:
    harness = Harness("m", 3)
    epochs = []
    for step in steps:
        if step in ALLOWED[harness.state]:
            STEPS[step](harness)
            if step is State.LOADING:
                epochs.append(harness.epoch)
        assert bool(harness.reason) == (harness.state is State.UNAVAILABLE)
    assert epochs == list(range(1, len(epochs) + 1))
