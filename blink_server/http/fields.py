"""A small declarative way to say what a JSON body may hold: name -> check.

A check takes the field's value and its path and returns the value to use, or raises
`InvalidRequest` naming field, value and what would be right. null counts as absent, as in
OpenAI's API.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

from blink_server.errors import InvalidRequest

Check = Callable[[Any, str], Any]


def refuse(path: str, value: Any, expected: str) -> InvalidRequest:
    """The error for a field whose value is wrong."""
    shown = json.dumps(value)
    if len(shown) > 60:
        shown = shown[:57] + "..."
    return InvalidRequest(f"{path} is {shown}; it must be {expected}", param=path)


def integer(low: int, high: int | None = None) -> Check:
    """A whole number from `low` to `high` (2**63 - 1 where not given)."""
    top = 2**63 - 1 if high is None else high
    expected = f"a whole number of at least {low}"
    if high is not None:
        expected = f"a whole number from {low} to {high}"

    def check(value: Any, path: str) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= top:
            raise refuse(path, value, expected)
        return value

    return check


def number(low: float, high: float = math.inf, *, above_low: bool = False) -> Check:
    """A finite number from `low` to `high`; `above_low` leaves `low` itself out."""
    bound = "above" if above_low else "of at least"
    expected = f"a number {bound} {low:g}"
    if high != math.inf:
        expected += f" and at most {high:g}"

    def check(value: Any, path: str) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise refuse(path, value, expected)
        try:
            result = float(value)
        except OverflowError:
            result = math.inf
        if not math.isfinite(result) or not low <= result <= high or (above_low and result == low):
            raise refuse(path, value, expected)
        return result

    return check


def boolean(value: Any, path: str) -> bool:
    """true or false."""
    if not isinstance(value, bool):
        raise refuse(path, value, "true or false")
    return value


def string(value: Any, path: str) -> str:
    """A string."""
    if not isinstance(value, str):
        raise refuse(path, value, "a string")
    return value


def mapping(value: Any, path: str) -> dict[str, Any]:
    """A JSON object."""
    if not isinstance(value, dict):
        raise refuse(path, value, "an object")
    return value


def array(item: Check, *, most: int, least: int = 0) -> Check:
    """A list of `least` to `most` items, each of which passes `item`."""

    def check(value: Any, path: str) -> list[Any]:
        if not isinstance(value, list) or not least <= len(value) <= most:
            raise refuse(path, value, f"a list of {least} to {most} items")
        return [item(one, f"{path}[{place}]") for place, one in enumerate(value)]

    return check


def only(*allowed: Any) -> Check:
    """One of these values; for fields of which only the neutral value can be served."""

    def check(value: Any, path: str) -> Any:
        # 0 == False in Python, but not in JSON.
        if not any(type(value) is type(one) and value == one for one in allowed):
            raise InvalidRequest(f"{path} is not supported by this server", param=path)
        return value

    return check


def anything(value: Any, path: str) -> Any:
    """Any value: the field is known and changes no output."""
    return value


def parse(
    body: Mapping[str, Any], table: Mapping[str, Check], ignored: Collection[str] = ()
) -> dict[str, Any]:
    """Check every field of `body`; returns those that are there and not null.

    Raises `InvalidRequest` for a field that is in neither `table` nor `ignored`, with the nearest
    known name: a misspelt field would otherwise change the answer in silence.
    """
    values = {}
    for name, value in body.items():
        check = table.get(name)
        if check is None:
            if name in ignored:
                continue
            raise _unknown(name, table)
        if value is not None:
            values[name] = check(value, name)
    return values


def _unknown(name: str, table: Mapping[str, Check]) -> InvalidRequest:
    nearest = difflib.get_close_matches(name, table, n=1)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    return InvalidRequest(
        f"unknown field {name!r}{hint}", param=name[:100], code="unknown_parameter"
    )
