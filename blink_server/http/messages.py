"""Chat messages: what OpenAI allows, flattened to what chat templates read."""

from __future__ import annotations

from typing import Any

from blink_server.errors import InvalidRequest
from blink_server.http.fields import refuse

_NOT_SERVED = ("tool_calls", "function_call", "audio")


def messages(value: Any, path: str) -> tuple[dict[str, Any], ...]:
    """A non-empty list of messages; returns each with its content as one string.

    A content of null is the empty string (templates would print "None"), a list of text parts is
    joined by newlines, whatever the role. Other fields of a message reach the template as they
    are. Raises `InvalidRequest`.
    """
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
        if value.get(name):
            raise InvalidRequest(
                f"{path}.{name} is not supported by this server", param=f"{path}.{name}"
            )
    if "content" not in value and role != "assistant":
        raise InvalidRequest(f"{path}.content is missing", param=f"{path}.content")
    return {**value, "content": _content(value.get("content"), f"{path}.content")}


def _content(value: Any, path: str) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise refuse(path, value, "a string, null or a list of text parts")
    return "\n".join(_text_part(part, f"{path}[{place}]") for place, part in enumerate(value))


def _text_part(value: Any, path: str) -> str:
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        raise refuse(path, value, 'an object like {"type": "text", "text": "..."}')
    if value["type"] != "text":
        raise InvalidRequest(
            f"{path}: parts of type {value['type']!r} are not supported by this server",
            param=f"{path}.type",
        )
    if not isinstance(value.get("text"), str):
        raise refuse(f"{path}.text", value.get("text"), "a string")
    return str(value["text"])
