"""The OpenAPI 3.1 document of everything served.

Bodies are described by the tables that check them (`blink_server.http.fields`), answers by
schemas/http_responses.schema.json.
"""

from __future__ import annotations

import json
from typing import Any

from blink_server.http.fields import Schema, Table, nullable
from blink_server.http.kserve_openapi import kserve_operations
from blink_server.http.messages_request import MESSAGES
from blink_server.http.openai_fields import chat_table, completion_table
from blink_server.http.operation import REFUSALS, Operation
from blink_server.http.responses_request import RESPONSES
from blink_server.http.tokenize_routes import DETOKENIZE, TOKENIZE_CHAT, TOKENIZE_TEXT
from blink_server.schemas import schema_directory

_EVENT = {
    "description": "Each event; its data is JSON, or [DONE] where OpenAI's API ends with that.",
    "type": "object",
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
    "required": ["data"],
}
_NAME = {
    "name": "name",
    "in": "path",
    "required": True,
    "description": "A model's name or alias, or `name:version`.",
    "schema": {"type": "string", "minLength": 1},
}
_FILE = {
    "name": "file",
    "in": "path",
    "required": True,
    "description": "The file's name.",
    "schema": {"type": "string", "minLength": 1},
}
_MODEL = {
    "name": "model",
    "in": "query",
    "description": "Ask about one model.",
    "schema": {"type": "string"},
}


def operations(max_n: int, *, console: bool) -> list[Operation]:
    """Every route; those of the console where it is served."""
    tokenize = {"anyOf": [_body(TOKENIZE_TEXT), _body(TOKENIZE_CHAT)]}
    return [
        Operation(
            "post",
            "/v1/completions",
            "Go on with a text.",
            "Completion",
            _body(completion_table(max_n)),
            streams=True,
        ),
        Operation(
            "post",
            "/v1/chat/completions",
            "Answer in a conversation.",
            "ChatCompletion",
            _body(chat_table(max_n)),
            streams=True,
        ),
        Operation(
            "post",
            "/v1/responses",
            "Answer in a conversation, in the shape of OpenAI's Responses API.",
            "Response",
            _body(RESPONSES),
            streams=True,
        ),
        Operation(
            "post",
            "/v1/messages",
            "Answer in a conversation, in the shape of Anthropic's API.",
            "Message",
            _body(MESSAGES),
            streams=True,
            refusal="AnthropicError",
        ),
        Operation("post", "/tokenize", "The token ids of a prompt.", "Tokens", tokenize),
        Operation("post", "/detokenize", "The text of token ids.", "Text", _body(DETOKENIZE)),
        Operation("get", "/v1/models", "The models that serve.", "ModelList", refusals=("401",)),
        Operation(
            "get",
            "/v1/models/{name}",
            "One model.",
            "Model",
            parameters=(_NAME,),
            refusals=("401", "404", "503"),
        ),
        *kserve_operations(max_n),
        *_open_operations(),
        *(_console_operations() if console else ()),
    ]


def _body(table: Table) -> Schema:
    """A table's schema, where a default is to be had for the model."""
    schema = table.schema
    schema["required"] = [name for name in schema["required"] if name != "model"]
    schema["properties"]["model"] = nullable(schema["properties"]["model"])
    return schema


def _open_operations() -> list[Operation]:
    ready = "Whether requests are taken and a model serves."
    return [
        Operation(
            "get", "/health/live", "Whether the process answers.", "Health", refusals=(), open=True
        ),
        Operation(
            "get",
            "/v2/health/live",
            "Whether the process answers.",
            "KServeLive",
            refusals=(),
            open=True,
        ),
        *(
            Operation(
                "get",
                path,
                ready,
                "Health",
                parameters=(_MODEL,),
                refusals=("404", "503"),
                refusal="KServeError" if path.startswith("/v2") else "Error",
                open=True,
            )
            for path in ("/health/ready", "/health", "/v2/health/ready")
        ),
        Operation("get", "/version", "The server's version.", "Version", refusals=(), open=True),
        Operation(
            "get", "/metrics", "Metrics for Prometheus.", "text/plain", refusals=(), open=True
        ),
        Operation(
            "get", "/openapi.json", "This document.", "application/json", refusals=(), open=True
        ),
        Operation("get", "/docs", "This document, to read.", "text/html", refusals=(), open=True),
    ]


def _console_operations() -> list[Operation]:
    return [
        Operation("get", "/", "Leads to the console.", "", refusals=(), open=True, redirects=True),
        Operation(
            "get",
            "/console",
            "A page that shows what goes on.",
            "text/html",
            refusals=(),
            open=True,
        ),
        Operation(
            "get",
            "/console/{file}",
            "A file of that page.",
            "*/*",
            parameters=(_FILE,),
            refusals=("404",),
            open=True,
        ),
        Operation(
            "get",
            "/console/events",
            "What that page shows: all of it, then what changes, until either side ends it.",
            "text/event-stream",
            refusals=("401",),
            streams=True,
            always=True,
        ),
    ]


def document(max_n: int, version: str, *, console: bool = True) -> dict[str, Any]:
    """The OpenAPI document. `max_n`: most choices of one prompt."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations(max_n, console=console):
        paths.setdefault(operation.path, {})[operation.method] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Blink server", "version": version},
        "paths": paths,
        "components": {
            "schemas": _answers(),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _answers() -> dict[str, Any]:
    path = schema_directory() / "http_responses.schema.json"
    text = path.read_text(encoding="utf-8").replace("#/$defs/", "#/components/schemas/")
    schemas: dict[str, Any] = json.loads(text)["$defs"]
    return schemas


def _described(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {"summary": operation.summary, "responses": {}}
    if operation.parameters:
        described["parameters"] = list(operation.parameters)
    if operation.body is not None:
        content = {"application/json": {"schema": operation.body}}
        described["requestBody"] = {"required": not operation.bodiless, "content": content}
    if not operation.open:
        described["security"] = [{"key": []}, {}]  # a server without keys needs none
    content = {} if operation.always else _content(operation.gives)
    if operation.streams:
        content["text/event-stream"] = {"schema": _EVENT}
    if operation.redirects:
        described["responses"]["307"] = {"description": "What is asked for is at Location."}
    else:
        described["responses"]["200"] = {"description": "Done.", "content": content}
    for status in operation.refusals:
        unready = operation.gives in ("Health", "KServeReady") and status == "503"
        described["responses"][status] = {
            "description": REFUSALS[status],
            "content": _unready(operation) if unready else _content(operation.refusal),
        }
    return described


def _unready(operation: Operation) -> dict[str, Any]:
    """In the words of its health, or, where the health cannot be told, as an error."""
    named = (operation.gives, operation.refusal)
    schemas = [{"$ref": f"#/components/schemas/{name}"} for name in named]
    return {"application/json": {"schema": {"anyOf": schemas}}}


def _content(gives: str) -> dict[str, Any]:
    if "/" in gives:
        return {gives: {}}
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{gives}"}}}
