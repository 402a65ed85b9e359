from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blink_server.text.stop_strings import StopStrings

letters = st.text("ab", max_size=30)
stop_lists = st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4)


def feed(stops: StopStrings, pieces: list[str]) -> str:
    shown = "".join(stops.push(piece) for piece in pieces)
    return shown + stops.flush()


def first_end(text: str, stops: list[str]) -> tuple[str, str] | None:
    """The plain reference: (text before, stop) of the first stop string that ends in `text`."""
    for end in range(len(text) + 1):
        ended = [stop for stop in stops if text[:end].endswith(stop)]
        if ended:
            longest = max(ended, key=len)
            return text[: end - len(longest)], longest
    return None


@given(st.lists(letters, max_size=8), stop_lists, st.booleans())
def test_any_split_of_the_text_gives_the_reference(
    pieces: list[str], stops: list[str], include: bool
) -> None:
    matcher = StopStrings(stops, include=include)
    shown = feed(matcher, pieces)
    expected = first_end("".join(pieces), stops)
    if expected is None:
        assert (shown, matcher.found) == ("".join(pieces), None)
    else:
        before, stop = expected
        assert matcher.found == stop
        assert shown == before + (stop if include else "")


@given(letters, stop_lists)
def test_what_is_held_back_is_shorter_than_the_longest_stop(text: str, stops: list[str]) -> None:
    matcher = StopStrings(stops)
    shown = ""
    for length, character in enumerate(text, start=1):
        shown += matcher.push(character)
        if matcher.found:
            break
        assert length - len(shown) <= max(map(len, stops)) - 1
        assert text.startswith(shown)


def test_a_partial_match_is_held_and_then_given_back() -> None:
    matcher = StopStrings(["END"])
    assert matcher.push("the E") == "the "
    assert matcher.push("N") == ""
    assert matcher.push("TER") == "ENTER"
    assert matcher.push(" EN") == " "
    assert matcher.flush() == "EN"
    assert matcher.found is None


def test_nothing_follows_a_match() -> None:
    matcher = StopStrings(["\n\n"])
    assert matcher.push("a\n\nb") == "a"
    assert matcher.push("c") == ""
    assert matcher.flush() == ""


def test_without_stop_strings_everything_passes() -> None:
    matcher = StopStrings([])
    assert matcher.push("anything") == "anything"
    assert matcher.flush() == ""


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopStrings(["a", ""])
