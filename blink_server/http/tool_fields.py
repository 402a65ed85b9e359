"""The fields of a request that concern tools: what the model may call, and whether it must."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blink_server.errors import InvalidRequest
from blink_server.http.fields import (
    Check,
    Table,
    boolean,
    mapping,
    object_of,
    one_of,
    refuse,
    string,
)

MAX_TOOLS = 128
_NAME_PATTERN = "^[a-zA-Z0-9_.-]{1,64}$"
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """Tools that the answer may call.

    `tools`: as the chat template gets them, {"type": "function", "function": {...}}. `required`:
    the answer must be a call, of the tool `name` where that is given. `parallel`: it may be
    several.
    """

    tools: tuple[Mapping[str, Any], ...]
    required: bool = False
    name: str | None = None
    parallel: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """What the tools are called."""
        return tuple(tool["function"]["name"] for tool in self.tools)


def _name(value: Any, path: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 64 or set(value) - _NAME_CHARACTERS:
        raise refuse(path, value, "1 to 64 letters, digits, '_', '.' and '-'")
    return value


tool_name = Check(_name, {"type": "string", "pattern": _NAME_PATTERN})
"""The name of a tool."""

FUNCTION = Table(
    {
        "name": tool_name,
        "description": string,
        "parameters": mapping,
        "strict": boolean,
    },
    required=("name",),
)

_TOOL = object_of(
    Table({"type": one_of("function"), "function": object_of(FUNCTION)}, ("type", "function"))
)


def _tools(value: Any, path: str) -> tuple[dict[str, Any], ...]:
    if not isinstance(value, list) or len(value) > MAX_TOOLS:
        raise refuse(path, value, f"a list of at most {MAX_TOOLS} tools")
    found = tuple(_TOOL(one, f"{path}[{place}]") for place, one in enumerate(value))
    names = [tool["function"]["name"] for tool in found]
    for place, name in enumerate(names):
        if name in names[:place]:
            raise refuse(f"{path}[{place}].function.name", name, "another name: that one is taken")
    return found


tools = Check(_tools, {"type": "array", "items": _TOOL.schema, "maxItems": MAX_TOOLS})
"""A list of tools; the value is a tuple of them."""

_NAMED = object_of(
    Table(
        {
            "type": one_of("function"),
            "function": object_of(Table({"name": tool_name}, required=("name",))),
        },
        required=("type", "function"),
    )
)
_WORD = one_of("none", "auto", "required")


def _choice(value: Any, path: str) -> Any:
    return _NAMED(value, path) if isinstance(value, dict) else _WORD(value, path)


tool_choice = Check(_choice, {"anyOf": [_WORD.schema, _NAMED.schema]})
"""none, auto, required, or one tool by name."""


def tool_use(values: Mapping[str, Any]) -> ToolUse | None:
    """What a parsed body says of tools; None where the answer may call none.

    Raises `InvalidRequest` for a choice that the tools do not allow.
    """
    given, choice = values.get("tools", ()), values.get("tool_choice", "auto")
    if choice == "none" or (not given and choice == "auto"):
        return None
    name = choice["function"]["name"] if isinstance(choice, dict) else None
    use = ToolUse(
        tools=given,
        required=choice != "auto",
        name=name,
        parallel=values.get("parallel_tool_calls", True),
    )
    if not given:
        raise InvalidRequest("tool_choice needs tools", param="tool_choice")
    if name is not None and name not in use.names:
        raise refuse("tool_choice.function.name", name, "the name of one of the tools")
    return use
