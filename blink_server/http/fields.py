"""A small declarative way to say what a JSON body may hold: name -> check.

A check takes the field's value and its path and returns the value to use, or raises
`InvalidRequest` naming field, value and what would be right; it also knows its JSON Schema, from
which the OpenAPI document is made, so that both are one table. null counts as absent, as in
OpenAI's API.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from blink_server.errors import InvalidRequest
from blink_server.suggestion import did_you_mean

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Check:
    """What a field may hold: a function, and the JSON Schema (draft 2020-12) of what it lets in."""

    read: Callable[[Any, str], Any]
    schema: Schema

    def __call__(self, value: Any, path: str) -> Any:
        """The value to use. Raises `InvalidRequest` naming `path`."""
        return self.read(value, path)


def refuse(path: str, value: Any, expected: str, *, param: str | None = None) -> InvalidRequest:
    """The error for a field whose value is wrong; `param` is the field's path if not given."""
    message = f"{path} is {_shown(value)}; it must be {expected}"
    return InvalidRequest(message, param=path if param is None else param)


def _shown(value: Any) -> str:
    """A value in a few characters, in bounded time however large or deep it is."""
    if isinstance(value, list | dict) and value:
        kind, part = ("a list", "items") if isinstance(value, list) else ("an object", "fields")
        return f"{kind} of {len(value)} {part}"
    shown = json.dumps(value[:60] if isinstance(value, str) else value)
    return shown if len(shown) <= 60 else shown[:57] + "..."


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

    return Check(check, {"type": "integer", "minimum": low, "maximum": top})


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

    schema: dict[str, Any] = {"type": "number"}
    schema["exclusiveMinimum" if above_low else "minimum"] = low
    if high != math.inf:
        schema["maximum"] = high
    return Check(check, schema)


def _boolean(value: Any, path: str) -> bool:
    if not isinstance(value, bool):
        raise refuse(path, value, "true or false")
    return value


boolean = Check(_boolean, {"type": "boolean"})
"""true or false."""


def _string(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise refuse(path, value, "a string")
    return value


string = Check(_string, {"type": "string"})
"""A string."""


def _text(value: Any, path: str) -> str:
    if not isinstance(value, str) or not value:
        raise refuse(path, value, "a string that is not empty")
    return value


text = Check(_text, {"type": "string", "minLength": 1})
"""A string that is not empty."""


def _mapping(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise refuse(path, value, "an object")
    return value


mapping = Check(_mapping, {"type": "object"})
"""A JSON object, whatever it holds."""

anything = Check(lambda value, path: value, {})
"""Any value: the field is known and read elsewhere, or changes no output."""


def array(item: Check, *, most: int, least: int = 0) -> Check:
    """A list of `least` to `most` items, each of which passes `item`."""

    def check(value: Any, path: str) -> list[Any]:
        if not isinstance(value, list) or not least <= len(value) <= most:
            raise refuse(path, value, f"a list of {least} to {most} items")
        return [item(one, f"{path}[{place}]") for place, one in enumerate(value)]

    return Check(
        check, {"type": "array", "items": item.schema, "minItems": least, "maxItems": most}
    )


def one_of(*allowed: str) -> Check:
    """One of these strings."""

    def check(value: Any, path: str) -> str:
        if not isinstance(value, str) or value not in allowed:
            raise refuse(path, value, " or ".join(map(repr, allowed)))
        return value

    return Check(check, {"enum": list(allowed)})


def only(*allowed: Any) -> Check:
    """One of these values; for fields of which only the neutral value can be served."""

    def check(value: Any, path: str) -> Any:
        # 0 == False in Python, but not in JSON.
        flag = isinstance(value, bool)
        if not any(flag is isinstance(one, bool) and value == one for one in allowed):
            raise InvalidRequest(f"{path} is not supported by this server", param=path)
        return value

    return Check(check, {"enum": list(allowed)} if allowed else {"type": "null"})


@dataclass(frozen=True, slots=True)
class Table:
    """What an object may hold. `ignored` fields are known and change nothing.

    Every other name is refused with the nearest known one: a misspelt field would otherwise
    change the answer in silence.
    """

    fields: Mapping[str, Check]
    required: tuple[str, ...] = ()
    ignored: Collection[str] = ()

    def parse(self, body: Mapping[str, Any], within: str = "") -> dict[str, Any]:
        """Check every field of `body`; returns those that are there and not null.

        `within` is the path of the object itself. Raises `InvalidRequest`.
        """
        prefix = f"{within}." if within else ""
        values = {}
        for name, value in body.items():
            check = self.fields.get(name)
            if check is None:
                if name in self.ignored:
                    continue
                raise self._unknown(name, prefix)
            if value is not None:
                values[name] = check(value, prefix + name)
        for name in self.required:
            if name not in values:
                raise InvalidRequest(
                    f"{prefix}{name} is missing", param=prefix + name, code="missing_parameter"
                )
        return values

    def _unknown(self, name: str, prefix: str) -> InvalidRequest:
        hint = did_you_mean(name[:100], self.fields)
        return InvalidRequest(
            f"unknown field {prefix + name[:100]!r}" + (f"; {hint}" if hint else ""),
            param=prefix + name[:100],
            code="unknown_parameter",
        )

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of such an object."""
        properties: dict[str, Any] = {
            name: check.schema if name in self.required else nullable(check.schema)
            for name, check in self.fields.items()
        }
        properties.update({name: {} for name in sorted(self.ignored)})
        return {
            "type": "object",
            "properties": properties,
            "required": list(self.required),
            "additionalProperties": False,
        }


def nullable(schema: Schema) -> Schema:
    """The schema that lets null in as well."""
    if not schema or schema.get("type") == "null":
        return schema
    return {"anyOf": [schema, {"type": "null"}]}


def object_of(table: Table) -> Check:
    """An object of a table's fields; the value is what `Table.parse` returns."""

    def check(value: Any, path: str) -> dict[str, Any]:
        return table.parse(mapping(value, path), path)

    return Check(check, table.schema)
