"""Content of messages: a string, or a list of parts with text; every API names its parts."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from blink_server.errors import InvalidRequest
from blink_server.http.fields import refuse


def text_of(value: Any, path: str, kinds: Collection[str]) -> str:
    """The text of a string, or of parts whose type is one of `kinds`, joined by newlines.

    Raises `InvalidRequest` naming `path`, or the part and what is wrong with it.
    """
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise refuse(path, value, "a string or a list of text parts")
    return "\n".join(text_part(part, f"{path}[{place}]", kinds) for place, part in enumerate(value))


def text_part(value: Any, path: str, kinds: Collection[str]) -> str:
    """The text of one part."""
    kind = kind_of(value, path)
    if kind not in kinds:
        raise InvalidRequest(
            f"{path}: parts of type {kind[:60]!r} are not supported by this server",
            param=f"{path}.type",
        )
    if not isinstance(value.get("text"), str):
        raise refuse(f"{path}.text", value.get("text"), "a string")
    return str(value["text"])


def kind_of(part: Any, path: str) -> str:
    """The type of a part. Raises `InvalidRequest`."""
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise refuse(path, part, 'an object like {"type": "text", "text": "..."}')
    return str(part["type"])


def text_schema(kinds: Collection[str]) -> dict[str, Any]:
    """The JSON Schema of what `text_of` takes."""
    part = {
        "type": "object",
        "properties": {"type": {"enum": list(kinds)}, "text": {"type": "string"}},
        "required": ["type", "text"],
    }
    return {"anyOf": [{"type": "string"}, {"type": "array", "items": part}]}
