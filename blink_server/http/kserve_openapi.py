"""The routes of KServe's v2 protocol and Triton's extensions, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blink_server.http.fields import Schema
from blink_server.http.kserve_fields import TEXT_INPUT, field_schemas
from blink_server.http.kserve_tensors import DATATYPES
from blink_server.http.operation import OF_TEXT, Operation

_BODY = ("400", "401", "408", "413", "429")
_TENSOR: Schema = {
    "type": "object",
    "required": ["name", "shape", "datatype"],
    "properties": {
        "name": {"type": "string"},
        "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
        "datatype": {"enum": list(DATATYPES), "description": "BYTES for text."},
        "data": {"description": "The elements; in the binary form they follow the JSON."},
        "parameters": {"type": "object"},
    },
}
_INFER: Schema = {
    "type": "object",
    "required": ["inputs"],
    "properties": {
        "inputs": {"type": "array", "items": _TENSOR},
        "outputs": {"type": "array", "items": {"type": "object"}},
        "parameters": {"type": "object"},
        "id": {},
    },
}
_INDEX: Schema = {
    "type": "object",
    "properties": {"ready": {"type": "boolean", "description": "Only versions that serve."}},
    "required": [],
}


def _path(name: str, description: str) -> Mapping[str, Any]:
    schema = {"type": "string", "minLength": 1}
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": description,
        "schema": schema,
    }


_MODEL = _path("model", "A model's name or alias.")
_VERSION = _path("version", "The number of a version.")


def kserve_operations(max_n: int) -> list[Operation]:
    """Every route under /v2 but its health. `max_n`: most choices of one prompt."""
    return [
        Operation(
            "get",
            "/v2",
            "Name, version and extensions of the server.",
            "KServeServer",
            refusals=("401",),
            refusal="KServeError",
        ),
        *_of_models("/v2/models/{model}", (_MODEL,), max_n),
        *_of_models("/v2/models/{model}/versions/{version}", (_MODEL, _VERSION), max_n),
        _told("/v2/models/stats", "Counters of every version.", "KServeStatistics", ()),
        *_of_the_repository(),
    ]


def _told(
    path: str, summary: str, gives: str, parameters: tuple[Mapping[str, Any], ...]
) -> Operation:
    refusals = ("401", "404", "503")
    return Operation(
        "get", path, summary, gives, parameters=parameters, refusals=refusals, refusal="KServeError"
    )


def _of_models(path: str, parameters: tuple[Mapping[str, Any], ...], max_n: int) -> list[Operation]:
    generate = _generate(max_n)
    posts: list[tuple[str, str, str, Schema, bool]] = [
        ("infer", "Texts for prompts, as tensors.", "KServeInferred", _INFER, False),
        ("generate", "A text for a prompt.", "KServeGenerated", generate, False),
        ("generate_stream", "A text for a prompt, as events.", "KServeGenerated", generate, True),
    ]
    return [
        _told(path, "Inputs and outputs.", "KServeModel", parameters),
        _told(f"{path}/ready", "Whether it serves.", "KServeReady", parameters),
        _told(f"{path}/config", "Its configuration.", "KServeConfig", parameters),
        _told(f"{path}/stats", "Its counters.", "KServeStatistics", parameters),
        *(
            Operation(
                "post",
                f"{path}/{name}",
                summary,
                gives,
                body,
                streams=streams,
                always=streams,
                parameters=parameters,
                refusals=OF_TEXT,
                refusal="KServeError",
            )
            for name, summary, gives, body, streams in posts
        ),
    ]


def _generate(max_n: int) -> Schema:
    fields = field_schemas(max_n)
    return {
        "type": "object",
        "required": [TEXT_INPUT],
        "properties": {
            TEXT_INPUT: {"type": "string"},
            "parameters": {
                "type": "object",
                "properties": fields,
                "required": [],
                "additionalProperties": False,
            },
            **fields,
        },
        "additionalProperties": False,
    }


def _of_the_repository() -> list[Operation]:
    config: Schema = {
        "anyOf": [{"type": "string"}, {"type": "object"}, {"type": "null"}],
        "description": "JSON that goes over config.json of each version.",
    }
    load: dict[str, Schema] = {"config": config, "force": {"type": "boolean"}}
    return [
        Operation(
            "post",
            "/v2/repository/index",
            "Every version on disk or in service.",
            "KServeIndex",
            _INDEX,
            refusals=(*_BODY, "503"),
            refusal="KServeError",
            bodiless=True,
        ),
        *(
            Operation(
                "post",
                f"/v2/repository/models/{{model}}/{action}",
                summary,
                "KServeDone",
                _with_parameters(parameters),
                parameters=(_MODEL,),
                refusals=(*_BODY, "403", "404", "503"),
                refusal="KServeError",
                bodiless=True,
            )
            for action, summary, parameters in (
                ("load", "Load a model, or what has changed of it (explicit mode).", load),
                ("unload", "Give a model no more requests.", {"unload_dependents": {}}),
            )
        ),
    ]


def _with_parameters(known: Mapping[str, Schema]) -> Schema:
    parameters: Schema = {
        "type": "object",
        "properties": dict(known),
        "required": [],
        "additionalProperties": False,
    }
    return {"type": "object", "properties": {"parameters": parameters}, "required": []}
