"""Chat messages: what OpenAI allows, flattened to what chat templates read."""

from __future__ import annotations

import json
from typing import Any

from blink_server.errors import InvalidRequest
from blink_server.http.content import text_of, text_schema
from blink_server.http.fields import Check, nullable, refuse

_NOT_SERVED = ("function_call", "audio")


def _messages(value: Any, path: str) -> tuple[dict[str, Any], ...]:
    if not isinstance(value, list) or not value:
        raise refuse(path, value, "a list of messages, and not empty")
    return tuple(_message(one, f"{path}[{place}]") for place, one in enumerate(value))


def _message(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise refuse(path, value, 'an object like {"role": "user", "content": "..."}')
    role = value.get("role")
    if not isinstance(role, str) or not role:
        raise refuse(f"{path}.role", role, "a string that is not empty")
    for name in _NOT_SERVED:
        if value.get(name) is not None:
            raise InvalidRequest(
                f"{path}.{name} is not supported by this server", param=f"{path}.{name}"
            )
    if "content" not in value and role != "assistant":
        raise InvalidRequest(f"{path}.content is missing", param=f"{path}.content")
    message = {**value, "content": _content(value, path)}
    calls = message.pop("tool_calls", None)
    if calls is not None and calls != []:
        message["tool_calls"] = _tool_calls(calls, f"{path}.tool_calls")
    return message


def _content(message: dict[str, Any], path: str) -> str:
    content = message.get("content")
    return "" if content is None else text_of(content, f"{path}.content", ("text",))


def _tool_calls(value: Any, path: str) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise refuse(path, value, "a list of tool calls")
    return [_tool_call(one, f"{path}[{place}]") for place, one in enumerate(value)]


def _tool_call(value: Any, path: str) -> dict[str, Any]:
    function = value.get("function") if isinstance(value, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        expected = 'an object like {"id": "...", "type": "function", "function": {"name": "..."}}'
        raise refuse(path, value, expected)
    arguments = _arguments(function.get("arguments"), f"{path}.function.arguments")
    return {
        **value,
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments},
    }


def _arguments(value: Any, path: str) -> dict[str, Any]:
    """OpenAI writes arguments as JSON in a string; templates print them from an object."""
    if isinstance(value, dict):
        return value
    if value is None or value == "":
        return {}
    try:
        arguments = json.loads(value) if isinstance(value, str) else None
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise refuse(path, value, "a JSON object in a string")
    return arguments


_CONTENT_SCHEMA = nullable(text_schema(("text",)))
_CALL_SCHEMA = {
    "type": "object",
    "properties": {
        "function": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "arguments": {"type": ["string", "object", "null"]},
            },
            "required": ["name"],
        }
    },
    "required": ["function"],
}
_MESSAGE_SCHEMA = {
    "type": "object",
    "properties": {
        "role": {"type": "string", "minLength": 1},
        "content": _CONTENT_SCHEMA,
        "tool_calls": {"anyOf": [{"type": "array", "items": _CALL_SCHEMA}, {"type": "null"}]},
        **{name: {"type": "null"} for name in _NOT_SERVED},
    },
    "required": ["role"],
    "anyOf": [{"required": ["content"]}, {"properties": {"role": {"const": "assistant"}}}],
}

messages = Check(_messages, {"type": "array", "items": _MESSAGE_SCHEMA, "minItems": 1})
"""A non-empty list of messages; the value has each with its content as one string.

A content of null is the empty string (templates would print "None"), a list of text parts is joined
by newlines, whatever the role. Arguments of tool calls have become objects. Other fields of a
message reach the template as they are.
"""
