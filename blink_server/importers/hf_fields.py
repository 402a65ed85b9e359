"""Fields of a JSON document, refused by name and value where they are not what they should be."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blink_server.errors import InvalidModel, Problem


class Fields:
    """Fields of one file; null counts as absent. Getters raise `InvalidModel` with the field."""

    def __init__(self, path: Path, values: Mapping[str, Any], prefix: str = "") -> None:
        self.path = path
        self._values = values
        self._prefix = prefix

    def get(self, name: str, default: Any = None) -> Any:
        value = self._values.get(name)
        return default if value is None else value

    def count(self, name: str, default: int | None = None) -> int:
        """A positive whole number."""
        value = self.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.invalid(name, "must be a positive whole number")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A positive number."""
        value = self.get(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
            raise self.invalid(name, "must be a positive number")
        return float(value)

    def numbers(self, name: str) -> tuple[float, ...]:
        """A list of positive numbers."""
        values = self.get(name)
        if not isinstance(values, list) or not all(
            isinstance(value, int | float) and not isinstance(value, bool) and value > 0
            for value in values
        ):
            raise self.invalid(name, "must be a list of positive numbers")
        return tuple(map(float, values))

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self.invalid(name, "must be true or false")
        return value

    def nested(self, name: str) -> Fields:
        """The fields of an object; of an empty one where there is none."""
        value = self.get(name, {})
        if not isinstance(value, dict):
            raise self.invalid(name, "must be an object")
        return Fields(self.path, value, f"{self._prefix}{name}.")

    def invalid(self, name: str, expected: str) -> InvalidModel:
        """The error about one field: "is missing" or its value, and what would be right."""
        found = self._values.get(name)
        said = expected if found is not None else f"is missing; {expected}"
        return InvalidModel([Problem(self.path, f"{self._prefix}{name}", found, said)])
