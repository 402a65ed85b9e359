"""The fields of a request that say what its answer's text must be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from blink_server.errors import InvalidRequest
from blink_server.http.fields import (
    Check,
    Table,
    array,
    boolean,
    mapping,
    object_of,
    one_of,
    only,
    refuse,
    string,
)
from blink_server.http.json_values import parse
from blink_server.text.grammar.constraint import Constraint, Spec

MAX_CHOICES = 10_000
_NAME = Check(
    lambda value, path: _name(value, path), {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$"}
)


def _name(value: Any, path: str) -> str:
    allowed = isinstance(value, str) and 0 < len(value) <= 64 and value.isascii()
    if not allowed or not value.replace("-", "_").replace("_", "a").isalnum():
        raise refuse(path, value, "1 to 64 letters, digits, '_' and '-'")
    return str(value)


def _schema(value: Any, path: str) -> Any:
    """A JSON Schema, also as text."""
    if isinstance(value, str):
        try:
            value = parse(value)
        except ValueError as error:
            raise InvalidRequest(f"{path} is no JSON: {error}", param=path) from None
    if not isinstance(value, dict | bool):
        raise refuse(path, value, "a JSON Schema")
    return value


_ANY_SCHEMA = Check(_schema, {"type": ["object", "string", "boolean"]})

# `strict` is taken either way: what is held, is held exactly.
JSON_SCHEMA_FIELDS = {
    "name": _NAME,
    "description": string,
    "schema": mapping,
    "strict": boolean,
}
_JSON_SCHEMA = Table(JSON_SCHEMA_FIELDS, required=("name",))
_FORMAT = Table(
    {
        "type": one_of("text", "json_object", "json_schema"),
        "json_schema": object_of(_JSON_SCHEMA),
    },
    required=("type",),
)


def _response_format(value: Any, path: str) -> Spec | None:
    fields = object_of(_FORMAT)(value, path)
    if fields["type"] != "json_schema":
        return {"type": "json_object", "path": path} if fields["type"] == "json_object" else None
    described = fields.get("json_schema")
    if described is None:
        raise InvalidRequest(f"{path}.json_schema is missing", param=f"{path}.json_schema")
    return schema_spec(described.get("schema", {}), f"{path}.json_schema.schema")


def schema_spec(schema: Any, path: str) -> Spec:
    """JSON that fulfils a schema."""
    return {"type": "json_schema", "schema": schema, "path": path}


response_format = Check(_response_format, object_of(_FORMAT).schema)
"""OpenAI's field; the value is a constraint's spec, None for any text."""

_choices = array(string, most=MAX_CHOICES, least=1)

_SPECS: Mapping[str, Callable[[Any, str], Spec]] = {
    "json": schema_spec,
    "json_object": lambda _, path: {"type": "json_object", "path": path},
    "regex": lambda source, path: {"type": "regex", "source": source, "path": path},
    "choice": lambda texts, path: {"type": "choice", "texts": texts, "path": path},
}
_STRUCTURED = Table(
    {
        "json": _ANY_SCHEMA,
        "json_object": only(True),
        "regex": string,
        "choice": _choices,
        "grammar": only(),
        "structural_tag": only(),
        "whitespace_pattern": only(),
        "disable_any_whitespace": boolean,  # there is at most one space between tokens
        "disable_fallback": boolean,
        "disable_additional_properties": boolean,
    }
)


def _structured_outputs(value: Any, path: str) -> Spec:
    fields = object_of(_STRUCTURED)(value, path)
    given = [name for name in _SPECS if name in fields]
    if len(given) != 1:
        raise InvalidRequest(f"{path} needs exactly one of {', '.join(_SPECS)}", param=path)
    return _SPECS[given[0]](fields[given[0]], f"{path}.{given[0]}")


structured_outputs = Check(_structured_outputs, object_of(_STRUCTURED).schema)
"""vLLM's field; the value is a constraint's spec."""

CONSTRAINTS: dict[str, Check] = {
    "response_format": response_format,
    "structured_outputs": structured_outputs,
    "guided_json": _ANY_SCHEMA,
    "guided_regex": string,
    "guided_choice": _choices,
    "guided_grammar": only(),
}
"""Fields of completions and chats; a request may have one of them."""


def constraint_of(values: Mapping[str, Any]) -> Constraint | None:
    """What a parsed body demands of the answer. Raises `InvalidRequest` where it is two things."""
    specs: dict[str, Spec] = {}
    for name in CONSTRAINTS:
        value = values.get(name)
        if value is not None:
            kind = name.removeprefix("guided_")
            specs[name] = _SPECS[kind](value, name) if kind in _SPECS else value
    if len(specs) > 1:
        first, second, *_ = specs
        raise InvalidRequest(f"{second} cannot be given together with {first}", param=second)
    for name, spec in specs.items():
        return Constraint(spec, param=name)
    return None
