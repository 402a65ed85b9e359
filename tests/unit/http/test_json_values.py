"""What is too deep to be handled afterwards is refused where it comes in."""

from __future__ import annotations

import json

import pytest

from blink_server.http.json_values import MOST_LEVELS, parse


@pytest.mark.parametrize(("begin", "end"), [("[", "]"), ('{"a":', "}")])
def test_what_is_within_the_levels_can_be_written_again(begin: str, end: str) -> None:
    text = begin * MOST_LEVELS + "1" + end * MOST_LEVELS
    assert parse(json.dumps(parse(text))) == parse(text.encode())


@pytest.mark.parametrize("levels", [MOST_LEVELS + 1, 970, 100_000])
def test_more_levels_are_refused(levels: int) -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        parse('{"a":' * levels + "1" + "}" * levels)


@pytest.mark.parametrize("text", ["NaN", '{"a": -Infinity}', "{", b"\xff"])
def test_what_is_no_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"JSON|Expecting|decode"):
        parse(text)
