"""The OpenAPI 3.1 document of everything served.

Bodies are described by the tables that check them (`blink_server.http.fields`), answers by
schemas/http_responses.schema.json.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blink_server.http.fields import Schema
from blink_server.http.messages_request import MESSAGES
from blink_server.http.openai_fields import chat_table, completion_table
from blink_server.http.responses_request import RESPONSES
from blink_server.http.tokenize_routes import DETOKENIZE, TOKENIZE_CHAT, TOKENIZE_TEXT
from blink_server.schemas import schema_directory

_REFUSALS = {
    "400": "The request is wrong; `param` names the field.",
    "401": "The API key is missing or wrong.",
    "404": "There is no such model in service.",
    "408": "The body did not arrive in time.",
    "413": "The body is too large.",
    "429": "The key has too many requests in progress.",
    "500": "The engine failed.",
    "503": "No slot is free, the model cannot serve now, or its runner was lost; see Retry-After.",
    "504": "The answer was not finished in time.",
}


@dataclass(frozen=True, slots=True)
class Operation:
    """One route: what it takes and gives. `body` None: it takes none; `gives`: a schema's name."""

    method: str
    path: str
    summary: str
    gives: str
    body: Schema | None = None
    streams: bool = False
    parameters: tuple[Mapping[str, Any], ...] = ()
    refusals: tuple[str, ...] = tuple(_REFUSALS)
    refusal: str = "Error"
    open: bool = False


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
_MODEL = {
    "name": "model",
    "in": "query",
    "description": "Ask about one model.",
    "schema": {"type": "string"},
}


def operations(max_n: int) -> list[Operation]:
    """Every route."""
    tokenize = {"anyOf": [TOKENIZE_TEXT.schema, TOKENIZE_CHAT.schema]}
    return [
        Operation(
            "post",
            "/v1/completions",
            "Go on with a text.",
            "Completion",
            completion_table(max_n).schema,
            streams=True,
        ),
        Operation(
            "post",
            "/v1/chat/completions",
            "Answer in a conversation.",
            "ChatCompletion",
            chat_table(max_n).schema,
            streams=True,
        ),
        Operation(
            "post",
            "/v1/responses",
            "Answer in a conversation, in the shape of OpenAI's Responses API.",
            "Response",
            RESPONSES.schema,
            streams=True,
        ),
        Operation(
            "post",
            "/v1/messages",
            "Answer in a conversation, in the shape of Anthropic's API.",
            "Message",
            MESSAGES.schema,
            streams=True,
            refusal="AnthropicError",
        ),
        Operation("post", "/tokenize", "The token ids of a prompt.", "Tokens", tokenize),
        Operation("post", "/detokenize", "The text of token ids.", "Text", DETOKENIZE.schema),
        Operation("get", "/v1/models", "The models that serve.", "ModelList", refusals=("401",)),
        Operation(
            "get",
            "/v1/models/{name}",
            "One model.",
            "Model",
            parameters=(_NAME,),
            refusals=("401", "404", "503"),
        ),
        *_open_operations(),
    ]


def _open_operations() -> list[Operation]:
    ready = "Whether requests are taken and a model serves."
    return [
        Operation(
            "get", "/health/live", "Whether the process answers.", "Health", refusals=(), open=True
        ),
        *(
            Operation(
                "get",
                path,
                ready,
                "Health",
                parameters=(_MODEL,),
                refusals=("404", "503"),
                open=True,
            )
            for path in ("/health/ready", "/health")
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


def document(max_n: int, version: str) -> dict[str, Any]:
    """The OpenAPI document. `max_n`: most choices of one prompt."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations(max_n):
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
        described["requestBody"] = {"required": True, "content": content}
    if not operation.open:
        described["security"] = [{"key": []}, {}]  # a server without keys needs none
    content = _content(operation.gives)
    if operation.streams:
        content["text/event-stream"] = {"schema": _EVENT}
    described["responses"]["200"] = {"description": "Done.", "content": content}
    for status in operation.refusals:
        # A server that is not ready says so in the words of its health.
        unready = operation.gives == "Health" and status == "503"
        described["responses"][status] = {
            "description": _REFUSALS[status],
            "content": _content("Health" if unready else operation.refusal),
        }
    return described


def _content(gives: str) -> dict[str, Any]:
    if "/" in gives:
        return {gives: {}}
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{gives}"}}}
