"""Options that plugins define: checked by the JSON Schemas that the plugins bring, by field."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jsonschema.exceptions import SchemaError

from blink_server.errors import Problem
from blink_server.schema_problems import problems_of
from blink_server.schemas import check_schema, filled, validator_of

Schema = Mapping[str, Any]

NAMED_BY: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "backend_options": ("backend",),
        "engine": ("engine", "name"),
        "tokenizer": ("tokenizer", "name"),
        "sampler_options": ("sampler",),
    }
)
"""Fields of config.json that hold options, and the field that says whose they are."""

_OWN = ("name", "file")  # of engine and tokenizer: the server's, in its own schema


def read_schemas(
    answers: Iterable[tuple[str, object]], offered: Mapping[str, Collection[str]]
) -> Iterable[tuple[str, dict[tuple[str, str], Schema] | str]]:
    """(plugin, its schemas by (field, name), or what is wrong with them), for each answer.

    `offered`: the names that plugins offer, by field.
    """
    for plugin, answer in answers:
        try:
            yield plugin, dict(_read(answer, offered))
        except ValueError as error:
            yield plugin, str(error)


def _read(
    answer: object, offered: Mapping[str, Collection[str]]
) -> Iterable[tuple[tuple[str, str], Schema]]:
    if not isinstance(answer, Mapping):
        raise ValueError(f"returned {answer!r} from blink_option_schemas, not a dict by field")
    for field, schemas in answer.items():
        if field not in NAMED_BY or not isinstance(schemas, Mapping):
            known = ", ".join(NAMED_BY)
            raise ValueError(f"has option schemas for {field!r}; give a dict by name for {known}")
        for name, schema in schemas.items():
            if name not in offered[field]:
                raise ValueError(f"has an option schema for the {field} of {name!r}: none is there")
            try:
                check_schema(schema)
            except SchemaError as error:
                raise ValueError(
                    f"has an option schema for the {field} of {name!r} that is no JSON Schema: "
                    f"{error.message}"
                ) from None
            yield (field, name), schema


def check_options(
    file: Path, config: Mapping[str, Any], schemas: Mapping[tuple[str, str], Schema]
) -> tuple[dict[str, Any], list[Problem]]:
    """`config` with the schemas' defaults filled in, and what the schemas do not allow in it.

    `config` has passed its own schema. Backends and samplers without a schema take no options;
    engines and tokenizers without one check theirs themselves.
    """
    result, problems = dict(config), []
    for field, path in NAMED_BY.items():
        options, name = config.get(field), _at(config, path)
        if not isinstance(options, Mapping):
            continue
        schema = schemas.get((field, name))
        if schema is None:
            if options and path != (field, "name"):
                expected = f"the {path[0]} {name!r} takes no options"
                problems.append(Problem(file, field, None, expected))
            continue
        taken = schema.get("properties", {})
        kept = {
            key: value
            for key, value in options.items()
            if path == (field, "name") and key in _OWN and key not in taken
        }
        given = {key: value for key, value in options.items() if key not in kept}
        problems += problems_of(validator_of(schema), given, file, within=field)
        result[field] = {**kept, **filled(schema, given)}
    return result, problems


def _at(config: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = config
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
