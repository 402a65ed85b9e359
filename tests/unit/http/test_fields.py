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


def test_a_table_takes_null_as_absent_and_suggests_names() -> None:
    checks = {"temperature": fields.number(0, 2), "n": fields.integer(1)}
    table = fields.Table(checks, ignored={"user"})
    assert table.parse({"temperature": None, "n": 2, "user": 5}) == {"n": 2}
    with pytest.raises(InvalidRequest, match="did you mean 'temperature'") as caught:
        table.parse({"temprature": 1})
    assert (caught.value.param, caught.value.code) == ("temprature", "unknown_parameter")


def test_a_table_within_another_names_the_whole_path() -> None:
    inner = fields.Table({"b": fields.integer(1)}, required=("b",))
    table = fields.Table({"a": fields.object_of(inner)})
    for body, param in [({"b": 0}, "a.b"), ({}, "a.b"), ({"c": 1}, "a.c")]:
        with pytest.raises(InvalidRequest) as caught:
            table.parse({"a": body})
        assert caught.value.param == param


@pytest.mark.parametrize("value", ["x" * 10**6, [["x"] * 1000] * 1000, {"a": 1}])
def test_large_values_are_shortened_in_messages(value: Any) -> None:
    assert len(refusal(fields.integer(1), value)) < 200


def test_deep_values_are_refused_like_others() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    assert "a list of 1 items" in refusal(fields.integer(1), deep)
