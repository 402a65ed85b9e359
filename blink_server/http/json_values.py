"""JSON of clients, no deeper than what handles it afterwards can follow."""

from __future__ import annotations

import json
from typing import Any, NoReturn

MOST_LEVELS = 256


def parse(text: str | bytes) -> Any:
    """Raises `ValueError`, which says why: no JSON, NaN and Infinity, or nested too deeply."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    _check_levels(value)
    return value


def _check_levels(value: Any) -> None:
    level = [value]
    for _ in range(MOST_LEVELS):
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
            if isinstance(child, dict | list)
        ]
        if not level:
            return
    raise ValueError(f"it is nested too deeply: more than {MOST_LEVELS} levels")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
