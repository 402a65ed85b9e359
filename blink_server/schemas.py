"""The JSON Schemas: where they are, and defaults filled in from them."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from jsonschema import Draft202012Validator
from jsonschema.protocols import Validator
from jsonschema.validators import extend
from referencing import Registry, Resource

SchemaName = Literal["model_config", "model", "graph_grid"]

NAMES: tuple[SchemaName, ...] = ("model_config", "model", "graph_grid")


def schema_directory() -> Path:
    """The folder of the schemas: in the installed package, or at the top of a checkout."""
    package = Path(__file__).parent
    installed = package / "schemas"
    return installed if installed.is_dir() else package.parent / "schemas"


@functools.cache
def load_schema(name: SchemaName) -> Mapping[str, Any]:
    """The schema of that name, parsed; not to be changed."""
    path = schema_directory() / f"{name}.schema.json"
    schema: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return schema


def limit_bounds(name: str) -> tuple[int, int]:
    """The least and the largest that config.json may give for a whole number of `limits`."""
    limit = load_schema("model_config")["$defs"]["limits"]["properties"][name]
    return limit["minimum"], limit["maximum"]


@functools.cache
def validator(name: SchemaName) -> Validator:
    """A validator of documents of that schema, in which 8.0 is not a whole number."""
    resources = [Resource.from_contents(load_schema(each)) for each in NAMES]
    registry: Registry[Any] = Registry().with_resources(
        [(str(resource.id()), resource) for resource in resources]
    )
    strict: Validator = _Strict(load_schema(name), registry=registry)
    return strict


def validator_of(schema: Mapping[str, Any]) -> Validator:
    """A validator of a plugin's own schema, as strict; it fetches nothing that a $ref names."""
    strict: Validator = _Strict(schema, registry=Registry())
    return strict


def check_schema(schema: Mapping[str, Any]) -> None:
    """Raises jsonschema's SchemaError for what is no JSON Schema."""
    _Strict.check_schema(schema)


def filled(schema: Mapping[str, Any], document: Mapping[str, Any]) -> dict[str, Any]:
    """A deep copy of a document with the defaults of a plugin's own schema."""
    return _filled(schema, schema, document)


def fill_defaults(name: SchemaName, document: Mapping[str, Any]) -> dict[str, Any]:
    """A deep copy of a document with the schema's defaults where fields are missing."""
    root = load_schema(name)
    return _filled(root, root, document)


def _filled(
    root: Mapping[str, Any], schema: Mapping[str, Any], value: Mapping[str, Any]
) -> dict[str, Any]:
    result = copy.deepcopy(dict(value))
    for field, subschema in _properties(root, schema).items():
        if field not in result and "default" in subschema:
            result[field] = copy.deepcopy(subschema["default"])
        if isinstance(result.get(field), dict):
            result[field] = _filled(root, subschema, result[field])
        elif isinstance(result.get(field), list):
            items = subschema.get("items", {})
            result[field] = [
                _filled(root, items, item) if isinstance(item, dict) else item
                for item in result[field]
            ]
    return result


def _properties(root: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = schema.get("$ref", "")
    if reference.startswith("#/"):
        for part in reference[2:].split("/"):
            root = root[part]
        schema = root
    properties: Mapping[str, Any] = schema.get("properties", {})
    return properties


def _is_whole(_checker: object, value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_Strict: Any = extend(  # type: ignore[no-untyped-call]
    Draft202012Validator,
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine("integer", _is_whole),
)
