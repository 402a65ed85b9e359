"""POST /v1/messages as a chat request: Anthropic's shape of the same thing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blink_server.errors import InvalidRequest
from blink_server.http.content import kind_of, text_of, text_part, text_schema
from blink_server.http.fields import (
    Check,
    Table,
    array,
    boolean,
    integer,
    mapping,
    number,
    object_of,
    one_of,
    only,
    refuse,
    string,
    text,
)
from blink_server.http.openai_fields import MAX_STOP_STRINGS
from blink_server.http.openai_requests import ChatRequest, parse_chat
from blink_server.http.tool_fields import MAX_TOOLS, tool_name

_TEXT = ("text",)


def _messages(value: Any, path: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value:
        raise refuse(path, value, "a list of messages, and not empty")
    messages: list[dict[str, Any]] = []
    for place, one in enumerate(value):
        where = f"{path}[{place}]"
        if not isinstance(one, dict):
            raise refuse(where, one, 'an object like {"role": "user", "content": "..."}')
        role = _ROLE(one.get("role"), f"{where}.role")
        content = one.get("content")
        if isinstance(content, str):
            messages.append({"role": role, "content": content})
        elif not isinstance(content, list):
            raise refuse(f"{where}.content", content, "a string or a list of content blocks")
        else:
            _add_blocks(messages, role, content, f"{where}.content")
    return messages


def _add_blocks(messages: list[dict[str, Any]], role: str, blocks: list[Any], path: str) -> None:
    """A message of blocks: results of tools become messages of their own, before its text."""
    texts, calls = [], []
    for place, block in enumerate(blocks):
        where = f"{path}[{place}]"
        match kind_of(block, where), role:
            case "tool_result", "user":
                messages.append(_result(_TOOL_RESULT.parse(block, where)))
            case "tool_use", "assistant":
                calls.append(_call(_TOOL_USE.parse(block, where)))
            case _:
                texts.append(text_part(block, where, _TEXT))
    if texts or calls or not blocks:
        message: dict[str, Any] = {"role": role, "content": "\n".join(texts)}
        messages.append({**message, "tool_calls": calls} if calls else message)


def _result(block: Mapping[str, Any]) -> dict[str, Any]:
    content = block.get("content", "")
    return {"role": "tool", "tool_call_id": block["tool_use_id"], "content": content}


def _call(block: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": block["name"], "arguments": block["input"]}
    return {"id": block["id"], "type": "function", "function": function}


_ROLE = one_of("user", "assistant")
_CONTENT = Check(lambda value, path: text_of(value, path, _TEXT), text_schema(_TEXT))
_CACHE = Check(lambda value, path: value, {})  # prompts are not cached by request
_TOOL_RESULT = Table(
    {
        "type": one_of("tool_result"),
        "tool_use_id": string,
        "content": _CONTENT,
        "is_error": boolean,
        "cache_control": _CACHE,
    },
    ("type", "tool_use_id"),
)
_TOOL_USE = Table(
    {
        "type": one_of("tool_use"),
        "id": string,
        "name": string,
        "input": mapping,
        "cache_control": _CACHE,
    },
    ("type", "id", "name", "input"),
)
_TEXT_BLOCK = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
}


def _message_schema(role: str, block: Mapping[str, Any]) -> dict[str, Any]:
    blocks = {"type": "array", "items": {"anyOf": [_TEXT_BLOCK, block]}}
    return {
        "type": "object",
        "properties": {"role": {"const": role}, "content": {"anyOf": [{"type": "string"}, blocks]}},
        "required": ["role", "content"],
    }


_MESSAGES_SCHEMA = {
    "type": "array",
    "items": {
        "anyOf": [
            _message_schema("user", _TOOL_RESULT.schema),
            _message_schema("assistant", _TOOL_USE.schema),
        ]
    },
    "minItems": 1,
}

_TOOL = object_of(
    Table(
        {
            "type": one_of("custom"),
            "name": tool_name,
            "description": string,
            "input_schema": mapping,
            "cache_control": _CACHE,
        },
        required=("name", "input_schema"),
    )
)
_TOOL_CHOICE = object_of(
    Table(
        {
            "type": one_of("auto", "any", "tool", "none"),
            "name": tool_name,
            "disable_parallel_tool_use": boolean,
        },
        required=("type",),
    )
)

MESSAGES = Table(
    {
        "model": string,
        "messages": Check(_messages, _MESSAGES_SCHEMA),
        "max_tokens": integer(1),
        "system": _CONTENT,
        "stop_sequences": array(text, most=MAX_STOP_STRINGS),
        "stream": boolean,
        "temperature": number(0, 1),
        "top_p": number(0, 1, above_low=True),
        "top_k": integer(0, 2**31 - 1),
        "tools": array(_TOOL, most=MAX_TOOLS),
        "tool_choice": _TOOL_CHOICE,
        "metadata": object_of(Table({"user_id": string})),
        "thinking": only({"type": "disabled"}),
        "container": only(),
        "mcp_servers": only([]),
        "context_management": only(),
    },
    required=("model", "messages", "max_tokens"),
    ignored=frozenset({"service_tier", "inference_geo"}),
)


def parse_messages(body: Mapping[str, Any]) -> ChatRequest:
    """Validate a body of POST /v1/messages. Raises `InvalidRequest`."""
    values = MESSAGES.parse(body)
    messages = values["messages"]
    if system := values.get("system"):
        messages = [{"role": "system", "content": system}, *messages]
    chat = {
        "model": values["model"],
        "messages": messages,
        "max_completion_tokens": values["max_tokens"],
        "stop": values.get("stop_sequences"),
        "user": values.get("metadata", {}).get("user_id"),
        "tools": [_tool(tool) for tool in values.get("tools", ())],
    }
    for name in ("stream", "temperature", "top_p", "top_k"):
        chat[name] = values.get(name)
    chat.update(_choice(values.get("tool_choice", {})))
    return parse_chat(chat, max_n=1)


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": tool["name"], "parameters": tool["input_schema"]}
    if "description" in tool:
        function["description"] = tool["description"]
    return {"type": "function", "function": function}


def _choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if choice.get("disable_parallel_tool_use"):
        fields["parallel_tool_calls"] = False
    match choice.get("type"):
        case "tool":
            if "name" not in choice:
                raise InvalidRequest("tool_choice.name is missing", param="tool_choice.name")
            fields["tool_choice"] = {"type": "function", "function": {"name": choice["name"]}}
        case "any":
            fields["tool_choice"] = "required"
        case str(word):
            fields["tool_choice"] = word
    return fields
