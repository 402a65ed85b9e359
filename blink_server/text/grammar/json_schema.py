"""JSON Schema (2020-12 as far as it is about the shape of values) as a description of JSON text.

Every text described fulfils the schema; not every value that does can be written. Properties come
in the schema's order, and objects with named properties have no others. What cannot be held is
refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from blink_server.text.grammar.json_text import JsonText
from blink_server.text.grammar.json_types import TypedValues
from blink_server.text.grammar.nfa import Nfa
from blink_server.text.grammar.refusal import GrammarRefused
from blink_server.text.grammar.schema_parts import (
    ANNOTATIONS,
    Place,
    Schema,
    are_disjoint,
    check_keywords,
    conjunction,
    joined,
    resolve,
    short,
    types_of,
)

DEEPEST = 8
"""Arrays and objects in one another, where a schema does not say how deep it goes."""

_DEEPEST_SCHEMA = 64


class JsonSchema:
    """Adds the values of one schema to an automaton."""

    def __init__(self, nfa: Nfa, root: Any, *, path: str = "", deepest: int = DEEPEST) -> None:
        """`path`: where the schema came from, for messages."""
        self._nfa = nfa
        self._json = JsonText(nfa)
        self._types = TypedValues(nfa, self._value)
        self._root = root
        self._path = path
        self._referred: dict[str, Any] = {}
        self._deepest = deepest

    def document(self, start: int) -> int:
        """A whole value. Raises `GrammarRefused`."""
        self._check(self._root, self._path)
        end = self._value(self._root, start, Place(self._path))
        if end is None:
            raise GrammarRefused(
                self._path, f"has no value within {self._deepest} levels of nesting"
            )
        return end

    def _check(self, schema: Any, path: str) -> None:
        """Once the types of all keywords are right, nothing below has to look at them again."""
        self._nfa.where = path
        try:
            Draft202012Validator.check_schema(schema)
        except SchemaError as error:
            where = joined(path, *error.absolute_path)
            raise GrammarRefused(where, f"is no JSON Schema: {short(error.message)}") from None

    def _resolve(self, reference: str, path: str) -> Any:
        """What a reference means, a schema wherever in the root it may lie."""
        if reference not in self._referred:
            self._referred[reference] = found = resolve(self._root, reference, path)
            self._check(found, path)
        return self._referred[reference]

    def _value(self, schema: Any, start: int, place: Place) -> int | None:
        """None where no value is small enough, or none at all exists."""
        self._nfa.where = place.path
        if schema is True or schema == {}:
            return self._json.value(start, max(self._deepest - place.depth, 0))
        if schema is False:
            return None
        if not isinstance(schema, dict):
            raise GrammarRefused(place.path, f"{short(schema)} is no schema")
        if place.depth > _DEEPEST_SCHEMA:
            raise GrammarRefused(place.path, f"is nested more than {_DEEPEST_SCHEMA} deep")
        check_keywords(schema, place.path)
        self._check_id(schema.get("$id"), place.path)
        combined: dict[str, Callable[[Any, Schema, int, Place], int | None]] = {
            "$ref": self._ref,
            "allOf": self._all_of,
            "anyOf": self._any_of,
            "oneOf": self._one_of,
        }
        for name, add in combined.items():
            if name in schema:
                rest = {key: value for key, value in schema.items() if key != name}
                return add(schema[name], rest, start, place.inside(name))
        if "const" in schema:
            return self._enum([schema["const"]], schema, start, place.inside("const"))
        if "enum" in schema:
            return self._enum(schema["enum"], schema, start, place.inside("enum"))
        return self._any_branch(
            types_of(schema, place.path),
            lambda kind, begin, _: self._types.add(kind, schema, begin, place),
            start,
        )

    def _check_id(self, identifier: Any, path: str) -> None:
        """References within a schema that is a document of its own would lead elsewhere."""
        whole = self._root.get("$id") if isinstance(self._root, dict) else None
        if identifier not in (None, whole) and not identifier.startswith("#"):
            raise GrammarRefused(joined(path, "$id"), "is held at the root only")

    def _any_branch(
        self, branches: Any, add: Callable[[Any, int, int], int | None], start: int
    ) -> int | None:
        """One of several; `add(branch, start, its number)`. None where all are None."""
        ends = []
        for number, branch in enumerate(branches):
            begin = self._nfa.link(start, self._nfa.state())
            ends.append(add(branch, begin, number))
        end = self._nfa.state()
        for branch_end in ends:
            if branch_end is not None:
                self._nfa.link(branch_end, end)
        return None if all(branch_end is None for branch_end in ends) else end

    def _ref(self, reference: Any, rest: Schema, start: int, place: Place) -> int | None:
        found = self._resolve(reference, place.path)
        if place.depth >= self._deepest and place.has_opened(reference):
            return None
        place = place.opened(reference)
        if isinstance(found, dict) and rest.keys() - ANNOTATIONS:
            found = conjunction([rest, found], place.path)
        return self._value(found, start, place)

    def _all_of(self, schemas: Any, rest: Schema, start: int, place: Place) -> int | None:
        parts: list[Schema] = [rest]
        for number, part in enumerate(_listed(schemas, place.path)):
            where = place.inside(number)
            while isinstance(part, dict) and "$ref" in part:
                place = place.opened(part["$ref"])
                inner = {key: value for key, value in part.items() if key != "$ref"}
                found = self._resolve(part["$ref"], where.path)
                part = (
                    found
                    if not isinstance(found, dict)
                    else conjunction([inner, found], where.path)
                )
            if part is False:
                return None
            if part is not True and not isinstance(part, dict):
                raise GrammarRefused(where.path, f"{short(part)} is no schema")
            parts.append({} if part is True else part)
        return self._value(conjunction(parts, place.path), start, place)

    def _any_of(self, schemas: Any, rest: Schema, start: int, place: Place) -> int | None:
        def add(part: Any, begin: int, number: int) -> int | None:
            where = place.inside(number)
            if isinstance(part, dict) and rest.keys() - ANNOTATIONS:
                part = conjunction([rest, part], where.path)
            elif part is True:
                part = rest
            return self._value(part, begin, where)

        return self._any_branch(_listed(schemas, place.path), add, start)

    def _one_of(self, schemas: Any, rest: Schema, start: int, place: Place) -> int | None:
        parts = [self._resolved(part, place) for part in _listed(schemas, place.path)]
        for number, part in enumerate(parts):
            if not all(are_disjoint(part, other) for other in parts[:number]):
                raise GrammarRefused(
                    place.inside(number).path,
                    "may hold together with one before it: use anyOf, or tell them apart by type, "
                    "or by a required property with const",
                )
        return self._any_of(schemas, rest, start, place)

    def _resolved(self, part: Any, place: Place) -> Any:
        plain = isinstance(part, dict) and part.keys() - ANNOTATIONS == {"$ref"}
        return self._resolve(part["$ref"], place.path) if plain else part

    def _enum(self, values: Any, schema: Schema, start: int, place: Place) -> int | None:
        checked = {k: v for k, v in schema.items() if k not in ANNOTATIONS and k != "type"}
        if "type" in schema:
            checked["type"] = [*types_of(schema, place.path)]
        validator = Draft202012Validator(checked)
        self._nfa.where = place.path
        possible = [v for v in _listed(values, place.path) if not checked or validator.is_valid(v)]
        return self._json.literals(start, possible) if possible else None


def _listed(values: Any, path: str) -> list[Any]:
    if not isinstance(values, list) or not values:
        raise GrammarRefused(path, "must be a list, and not empty")
    return values
