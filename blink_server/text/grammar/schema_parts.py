"""JSON Schemas as this server reads them: references, conjunctions, what each keyword is about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

from blink_server.text.grammar.refusal import GrammarRefused

Schema = Mapping[str, Any]

ANNOTATIONS = frozenset(
    {
        "$schema",
        "$id",
        "$anchor",
        "$comment",
        "$defs",
        "definitions",
        "title",
        "description",
        "default",
        "examples",
        "example",
        "deprecated",
        "readOnly",
        "writeOnly",
        "discriminator",
        "contentEncoding",
        "contentMediaType",
        "nullable",
        "strict",
    }
)
KEYWORDS_OF: Mapping[str, frozenset[str]] = {
    "object": frozenset(
        {
            "properties",
            "required",
            "additionalProperties",
            "patternProperties",
            "minProperties",
            "maxProperties",
            "propertyNames",
        }
    ),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems", "uniqueItems"}),
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "number": frozenset(
        {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
    ),
}
GENERAL = frozenset({"type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref"})
KNOWN = ANNOTATIONS | GENERAL | frozenset().union(*KEYWORDS_OF.values())
ABOUT_THE_REST: Mapping[str, tuple[str, ...]] = {
    "additionalProperties": ("properties", "patternProperties"),
    "items": ("prefixItems",),
}
"""Keywords about what others of the same schema, and of no other one, leave."""
TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")


class Place(NamedTuple):
    """Where in a schema one is: `depth` counts the arrays and objects around a value.

    `references` are those that led here, each with the depth it was followed at.
    """

    path: str = ""
    depth: int = 0
    references: tuple[tuple[str, int], ...] = ()

    def inside(self, name: str | int) -> Place:
        """A part of the schema that is about the same value."""
        return self._replace(path=joined(self.path, name))

    def within(self, *names: str | int) -> Place:
        """A part that is about values inside the value."""
        return self._replace(path=joined(self.path, *names), depth=self.depth + 1)

    def has_opened(self, reference: Any) -> bool:
        """Whether the reference leads to something that has it."""
        return any(reference == one for one, _ in self.references)

    def opened(self, reference: Any) -> Place:
        """Behind a reference. Raises `GrammarRefused` where it leads to itself."""
        if (reference, self.depth) in self.references:
            raise GrammarRefused(self.path, f"{short(reference)} leads to itself")
        return self._replace(references=(*self.references, (reference, self.depth)))


def joined(path: str, *names: str | int) -> str:
    """A path one or more steps on."""
    return ".".join(str(name) for name in (path, *names) if name != "")


def resolve(root: Any, reference: Any, path: str) -> Any:
    """What a "#/..." reference means. Raises `GrammarRefused`."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        raise GrammarRefused(path, f"{short(reference)} is not in this schema: use #/$defs/...")
    found = root
    for step in reference[1:].split("/")[1:]:
        step = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and step.isdecimal() and int(step) < len(found):
            found = found[int(step)]
        elif isinstance(found, dict) and step in found:
            found = found[step]
        else:
            raise GrammarRefused(path, f"{short(reference)} is not in this schema")
    return found


def conjunction(schemas: Sequence[Schema], path: str) -> dict[str, Any]:
    """One schema that demands what all of them do.

    Raises `GrammarRefused` for keywords that would have to be intersected.
    """
    for rest, others in ABOUT_THE_REST.items():
        for one in schemas:
            if one.get(rest, True) in (True, {}):
                continue
            if any(_names_more(schema, one, name) for schema in schemas for name in others):
                raise GrammarRefused(joined(path, rest), "is about what a schema beside it names")
    merged: dict[str, Any] = {}
    for schema in schemas:
        for name, value in schema.items():
            if name in ANNOTATIONS or name not in merged or merged[name] == value:
                merged[name] = value
            elif name == "required":
                merged[name] = [*merged[name], *(v for v in value if v not in merged[name])]
            elif name == "properties" and _agree(merged[name], value):
                merged[name] = {**merged[name], **value}
            elif name == "type" and {_name(merged[name]), _name(value)} == {"integer", "number"}:
                merged[name] = "integer"
            else:
                raise GrammarRefused(joined(path, name), "is demanded twice, in different ways")
    return merged


def _names_more(schema: Schema, one: Schema, keyword: str) -> bool:
    given, known = schema.get(keyword, ()), one.get(keyword, ())
    if isinstance(given, list):
        return len(given) > len(known)
    return any(name not in known for name in given)


def _agree(one: Any, other: Any) -> bool:
    return (
        isinstance(one, dict)
        and isinstance(other, dict)
        and all(one[name] == other[name] for name in one.keys() & other.keys())
    )


def _name(value: Any) -> Any:
    return value if isinstance(value, str) else None


def types_of(schema: Schema, path: str) -> tuple[str, ...]:
    """The types that values may have; all of them where nothing is said.

    Without a "type", keywords that are about one type mean that type. Raises `GrammarRefused`.
    """
    given = schema.get("type")
    if given is None:
        about = [name for name, keywords in KEYWORDS_OF.items() if keywords & schema.keys()]
        return tuple(about) or ("object", "array", "string", "number", "boolean", "null")
    listed = given if isinstance(given, list) else [given]
    for name in listed:
        if name not in TYPES:
            raise GrammarRefused(joined(path, "type"), f"{short(name)} is no type")
    nullable = schema.get("nullable") is True and "null" not in listed
    return (*listed, "null") if nullable else tuple(listed)


def check_keywords(schema: Schema, path: str) -> None:
    """Raises `GrammarRefused` for a keyword that is not held here."""
    for name in schema:
        if name not in KNOWN and not name.startswith("x-"):
            raise GrammarRefused(joined(path, name), "is not supported")


def count(schema: Schema, name: str, default: int | None) -> int | None:
    """A keyword that counts something."""
    value = schema.get(name, default)
    return None if value is None else int(value)


def are_disjoint(one: Schema, other: Schema) -> bool:
    """Whether no value can fulfil both, as far as their types and tags tell."""
    values = [_values(schema) for schema in (one, other)]
    if all(v is not None for v in values):
        first, second = values
        return not any(v in (second or ()) for v in first or ())
    types = [_types(schema) for schema in (one, other)]
    if types[0] is None or types[1] is None:
        return False
    if not types[0] & types[1]:
        return True
    return types[0] == types[1] == {"object"} and any(
        are_disjoint(one["properties"][name], other["properties"][name])
        for name in _tags(one) & _tags(other)
    )


def _values(schema: Schema) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def _types(schema: Schema) -> set[str] | None:
    given = schema.get("type")
    if given is None:
        return None
    listed = given if isinstance(given, list) else [given]
    return {"number" if name == "integer" else str(name) for name in listed}


def _tags(schema: Schema) -> set[str]:
    """Required properties that have one of a few values."""
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict) or not isinstance(required, list):
        return set()
    return {
        name
        for name in properties
        if name in required
        and isinstance(properties[name], dict)
        and _values(properties[name]) is not None
    }


def short(value: Any) -> str:
    """A value as messages show it."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
