from __future__ import annotations

from typing import Any

import pytest

from blink_server.errors import InvalidRequest
from blink_server.http import fields


def refusal(check: fields.Check, value: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        check(value, "field")
    assert caught.value.param == "field"
    return str(caught.value)


@pytest.mark.parametrize(("value", "kept"), [(1, 1), (9, 9), (3.0, 3)])
def test_integers(value: Any, kept: int) -> None:
    result = fields.integer(1, 9)(value, "field")
    assert (result, type(result)) == (kept, int)


@pytest.mark.parametrize("value", [0, 10, 1.5, "3", True, [], 1e300])
def test_no_integers(value: Any) -> None:
    assert refusal(fields.integer(1, 9), value).endswith("it must be a whole number from 1 to 9")


@pytest.mark.parametrize("value", [-0.1, 1.1, "0.5", True, float("inf"), float("nan"), 10**400])
def test_no_numbers(value: Any) -> None:
    assert "a number of at least 0 and at most 1" in refusal(fields.number(0, 1), value)


def test_the_low_end_may_be_left_out() -> None:
    assert fields.number(0, 1)(0, "field") == 0
    assert "above 0" in refusal(fields.number(0, 1, above_low=True), 0)


def test_only_distinguishes_numbers_from_truth_values() -> None:
    assert fields.only(False)(False, "field") is False
    refusal(fields.only(False), 0)
    refusal(fields.only(1), True)
    refusal(fields.only(), "anything")


def test_parse_takes_null_as_absent_and_suggests_names() -> None:
    table = {"temperature": fields.number(0, 2), "n": fields.integer(1)}
    assert fields.parse({"temperature": None, "n": 2, "user": 5}, table, {"user"}) == {"n": 2}
    with pytest.raises(InvalidRequest, match="did you mean 'temperature'") as caught:
        fields.parse({"temprature": 1}, table)
    assert (caught.value.param, caught.value.code) == ("temprature", "unknown_parameter")


def test_long_values_are_shortened_in_messages() -> None:
    assert len(refusal(fields.string, ["x" * 1000])) < 200
