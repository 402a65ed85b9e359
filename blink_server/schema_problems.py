"""A validator's findings as problems in words: what is wrong where, and what would be right."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jsonschema.exceptions import ValidationError
from jsonschema.protocols import Validator

from blink_server.errors import Problem
from blink_server.schemas import SchemaName, validator
from blink_server.suggestion import did_you_mean

_TYPES = {
    "object": "an object",
    "array": "a list",
    "string": "a string",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
}

_LONGEST_SHOWN = 80  # characters of a value; a longer one would hide what is said about it


def find_problems(name: SchemaName, document: Any, file: Path) -> list[Problem]:
    """Everything in `document`, read from `file`, that the schema does not allow."""
    return problems_of(validator(name), document, file)


def problems_of(
    validator: Validator, document: Any, file: Path, *, within: str = ""
) -> list[Problem]:
    """Everything in `document`, the field `within` of `file`, that the validator does not allow."""
    found: dict[tuple[str, str], Problem] = {}
    for error in validator.iter_errors(document):
        for problem in _problems(error, file, [within] if within else []):
            # Each of several missing fields is an error of its own that lists all of them.
            found.setdefault((problem.field, problem.expected), problem)
    return [found[key] for key in sorted(found)]


def nearest(name: str, known: Iterable[str]) -> str:
    """`did you mean 'x'?`, or the known names where none is near."""
    names = sorted(known)
    if hint := did_you_mean(name, names):
        return hint
    return f"known are {', '.join(names)}" if names else "none is known"


def field_path(parts: Iterable[str | int]) -> str:
    """`limits.max_rows`, `decode[2].rows`."""
    path = ""
    for part in parts:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            name = part if part.isprintable() else ascii(part)
            path += f".{name}" if path else name
    return path


def _problems(error: ValidationError, file: Path, within: Sequence[str]) -> Iterator[Problem]:
    schema: Any = error.schema
    instance: Any = error.instance
    bound: Any = error.validator_value
    parts = [*within, *error.absolute_path]
    if error.validator == "required":
        for field in bound:
            if field not in instance:
                yield Problem(file, field_path([*parts, field]), None, "is missing")
    elif error.validator == "additionalProperties":
        known = set(schema.get("properties", ()))
        for field in sorted(set(instance) - known):
            hint = nearest(field, known - {"$schema"})
            yield Problem(file, field_path([*parts, field]), None, f"is not a known field; {hint}")
    else:
        value = instance if len(repr(instance)) <= _LONGEST_SHOWN else None
        yield Problem(file, field_path(parts), value, _expected(error))


def _fields(schema: Mapping[str, Any], names: Sequence[str]) -> str:
    """Which fields the object may have that is wanted: its name alone tells nobody."""
    known = sorted(set(schema.get("properties", ())) - {"$schema"})
    if "object" not in names or "properties" not in schema:
        return ""
    if not known:
        return ", an empty one: {}"
    fields = "its field is" if len(known) == 1 else "its fields are"
    return f"; {fields} {', '.join(known)}"


def _expected(error: ValidationError) -> str:
    schema: Any = error.schema
    bound: Any = error.validator_value
    match error.validator:
        case "type":
            names = [bound] if isinstance(bound, str) else bound
            return "must be " + " or ".join(_TYPES[name] for name in names) + _fields(schema, names)
        case "enum":
            choices = (each if isinstance(each, str) else json.dumps(each) for each in bound)
            return f"must be one of {', '.join(choices)}"
        case "const":
            return f"must be {bound if isinstance(bound, str) else json.dumps(bound)}"
        case "minimum":
            return f"must be at least {bound}"
        case "maximum":
            return f"must be at most {bound}"
        case "exclusiveMinimum":
            return f"must be more than {bound}"
        case "exclusiveMaximum":
            return f"must be less than {bound}"
        case "multipleOf":
            return f"must be a multiple of {bound}"
        case "minLength":
            return "must not be empty"
        case "minItems" | "maxItems":
            side = "at least" if error.validator == "minItems" else "at most"
            return f"must have {side} {bound} element{'s' * (bound != 1)}"
        case "minProperties" | "maxProperties":
            known = ", ".join(sorted(schema.get("properties", ())))
            side = "at least" if error.validator == "minProperties" else "at most"
            return f"must have {side} {bound} of the fields {known}"
        case "uniqueItems":
            return "must not hold an element twice"
        case "pattern" if "description" in schema:
            description = schema["description"].rstrip(".")
            return f"must be {description[:1].lower()}{description[1:]}"
        case _:
            return error.message
