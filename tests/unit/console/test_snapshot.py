"""Changes make the state before into the state after; the state says what the rings hold."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blink_server.backend import SLOT_STATES, ModelVersion, SessionLimits, SlotTable
from blink_server.console.snapshot import changes, snapshot
from blink_server.http.model_entry import ModelEntry, ServerState
from blink_server.http.models import ModelDirectory
from blink_server.repository.harness import State
from blink_server.testing.fake_backend import FakeSession

LEAVES = st.one_of(st.integers(), st.text(max_size=3), st.lists(st.integers(), max_size=3))
NAMES = st.text(max_size=2)
VALUES = st.recursive(LEAVES, lambda inner: st.dictionaries(NAMES, inner, max_size=3), max_leaves=8)
STATES = st.dictionaries(NAMES, VALUES, max_size=4)


def merged(before: Any, change: Any) -> Any:
    """What a page does with a change."""
    if not isinstance(before, dict) or not isinstance(change, dict):
        return change
    result = {**before}
    for key, value in change.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(before.get(key), value)
    return result


@given(STATES, STATES)
def test_changes_lead_from_any_state_to_any_other(before: Any, after: Any) -> None:
    change = json.loads(json.dumps(changes(before, after)))
    assert merged(before, change) == after
    assert (change == {}) == (before == after)


def table(*cells: tuple[str, int, int, float]) -> SlotTable:
    states, tickets, generated, ages = zip(*cells, strict=True)
    return SlotTable(
        np.array([SLOT_STATES.index(state) for state in states], np.uint8),
        np.array(tickets, np.uint32),
        np.array(generated, np.uint32),
        np.array(ages),
        len(cells),
    )


@pytest.fixture
def session() -> FakeSession:
    return FakeSession(lambda request: (), SessionLimits(8, 8, ()))


@pytest.fixture
def directory(session: FakeSession) -> ModelDirectory:
    directory = ModelDirectory()
    version = ModelVersion("m", 2, None, {})  # type: ignore[arg-type]
    broken = ModelVersion("m", 3, None, {})  # type: ignore[arg-type]
    directory.publish(
        [
            ModelEntry(version, 5, State.READY, session=session, aliases=("chat",)),
            ModelEntry(broken, 6, State.UNAVAILABLE, reason="config.json: no such file"),
        ]
    )
    return directory


def test_only_slots_in_use_are_told(
    directory: ModelDirectory, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = table(("EMPTY", 4, 0, 0.0), ("DECODE_PROCESSING", 7, 3, 2.0))
    monkeypatch.setattr(session, "slots", lambda: slots)
    monkeypatch.setattr("time.time", lambda: 1000.0)
    ring = snapshot(directory, {})["rings"]["m:2"]
    assert ring == {"slots": 2, "per_range": 2, "cells": {"1": [3, 7, 3, 998.0]}}


def test_a_requests_time_does_not_flicker(
    directory: ModelDirectory, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "slots", lambda: table(("DECODE_PROCESSING", 7, 3, 2.0)))
    monkeypatch.setattr("time.time", lambda: 1000.0)
    first = snapshot(directory, {})
    monkeypatch.setattr("time.time", lambda: 1000.4)
    assert changes(first, snapshot(directory, first)) == {}
    monkeypatch.setattr(session, "slots", lambda: table(("DECODE_PROCESSING", 8, 1, 0.0)))
    assert snapshot(directory, first)["rings"]["m:2"]["cells"]["0"] == [3, 8, 1, 1000.4]


def test_a_model_that_has_no_version_is_told_with_its_reason() -> None:
    directory = ModelDirectory()
    nothing = ModelVersion("m", 0, None, {})  # type: ignore[arg-type]
    directory.publish([ModelEntry(nothing, 0, State.UNAVAILABLE, reason="model.json: not JSON")])
    assert snapshot(directory, {})["models"]["m:0"]["reason"] == "model.json: not JSON"


def test_versions_are_told_with_state_reason_and_epoch(directory: ModelDirectory) -> None:
    assert snapshot(directory, {})["models"] == {
        "m:2": {"epoch": 5, "state": "READY", "reason": "", "aliases": ["chat"], "serves": False},
        "m:3": {
            "epoch": 6,
            "state": "UNAVAILABLE",
            "reason": "config.json: no such file",
            "aliases": [],
            "serves": False,
        },
    }


def test_a_session_that_fails_to_tell_leaves_the_rest_and_is_logged_once(
    directory: ModelDirectory,
    session: FakeSession,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(session, "stats", lambda: 1 / 0)
    states = [snapshot(directory, {}) for _ in range(3)]
    assert all("m:2" in state["models"] and not state["schedulers"] for state in states)
    assert caplog.text.count("its session met a defect") == 1


@pytest.mark.parametrize(
    ("state", "server", "told"),
    [
        (State.UNAVAILABLE, ServerState.READY, "UNAVAILABLE"),
        (State.LOADING, ServerState.STARTING, "STARTING"),
        (State.UNAVAILABLE, ServerState.DRAINING, "DRAINING"),
        (None, ServerState.READY, "READY"),
    ],
)
def test_a_server_without_a_version_that_serves_is_not_called_ready(
    state: State | None, server: ServerState, told: str
) -> None:
    directory = ModelDirectory()
    version = ModelVersion("m", 1, None, {})  # type: ignore[arg-type]
    directory.publish([ModelEntry(version, 1, state)] if state else [], server=server)
    assert snapshot(directory, {})["server"] == told
