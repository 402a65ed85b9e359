"""The reader's side of the console's feed."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from blink_server.console.snapshot import changes
from blink_server.top.feed import merge, parse

LEAVES = st.integers() | st.booleans() | st.text(max_size=3) | st.lists(st.integers(), max_size=2)
STATES = st.recursive(
    st.dictionaries(st.sampled_from("abc"), LEAVES, max_size=3),
    lambda deeper: st.dictionaries(st.sampled_from("abc"), LEAVES | deeper, max_size=3),
)


@given(STATES, STATES)
def test_what_the_server_calls_changed_makes_the_new_state(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    merge(before, changes(before, after))
    assert before == after


def test_events_are_told_apart_and_end_with_bye() -> None:
    lines = [
        *(b"event: state\n", b'data: {"time": 1}\n', b"\n"),
        *(b": alive\n", b"\n"),
        *(b"event: change\r\n", b'data: {"time": 2}\r\n', b"\r\n"),
        *(b"event: bye\n", b"data: {}\n", b"\n"),
        *(b"event: change\n", b'data: {"time": 3}\n', b"\n"),
    ]
    assert list(parse(lines)) == [("state", {"time": 1}), ("change", {"time": 2})]
