"""POST /v1/responses as a chat request: OpenAI's newer shape of the same thing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blink_server.errors import InvalidRequest
from blink_server.http.constraints import JSON_SCHEMA_FIELDS
from blink_server.http.content import text_of, text_schema
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
)
from blink_server.http.openai_fields import CHAT_MAX_LOGPROBS
from blink_server.http.openai_requests import ChatRequest, parse_chat
from blink_server.http.tool_fields import FUNCTION, MAX_TOOLS, tool_name

LOGPROBS = "message.output_text.logprobs"
_TEXT_PARTS = ("input_text", "output_text", "text")


@dataclass(frozen=True, slots=True)
class ResponsesRequest:
    """The chat request that a body means, and what the response repeats of the body."""

    chat: ChatRequest
    repeated: Mapping[str, Any]


def _input(value: Any, path: str) -> list[dict[str, Any]]:
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list) or not value:
        raise refuse(path, value, "a string, or a list of items, and not empty")
    messages: list[dict[str, Any]] = []
    for place, item in enumerate(value):
        _add_item(messages, item, f"{path}[{place}]")
    return messages


def _add_item(messages: list[dict[str, Any]], item: Any, path: str) -> None:
    if not isinstance(item, dict):
        raise refuse(path, item, 'an object like {"role": "user", "content": "..."}')
    match item.get("type", "message"):
        case "message":
            role = one_of("user", "assistant", "system", "developer")(
                item.get("role"), f"{path}.role"
            )
            content = _CONTENT(item.get("content"), f"{path}.content")
            # Chat templates know one role for instructions.
            messages.append({"role": "system" if role == "developer" else role, "content": content})
        case "function_call":
            _add_call(messages, _CALL.parse(item, path))
        case "function_call_output":
            output = _OUTPUT.parse(item, path)
            content = text_of(output["output"], f"{path}.output", _TEXT_PARTS)
            messages.append({"role": "tool", "tool_call_id": output["call_id"], "content": content})
        case _:
            raise InvalidRequest(
                f"{path}: items of this type are not supported by this server",
                param=f"{path}.type",
            )


def _add_call(messages: list[dict[str, Any]], call: Mapping[str, Any]) -> None:
    """Calls belong to the assistant's message before them."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    function = {"name": call["name"], "arguments": call["arguments"]}
    calls = messages[-1].setdefault("tool_calls", [])
    calls.append({"id": call["call_id"], "type": "function", "function": function})


_CONTENT = Check(lambda value, path: text_of(value, path, _TEXT_PARTS), text_schema(_TEXT_PARTS))
_ITEM = {"type": one_of("function_call", "function_call_output"), "id": string, "status": string}
_CALL = Table(
    {**_ITEM, "call_id": string, "name": string, "arguments": string},
    ("call_id", "name", "arguments"),
)
_OUTPUT = Table(
    {
        **_ITEM,
        "call_id": string,
        "output": Check(lambda value, path: value, text_schema(_TEXT_PARTS)),
    },
    ("call_id", "output"),
)
_ITEM_SCHEMA = {
    "anyOf": [
        {
            "type": "object",
            "properties": {
                "type": {"const": "message"},
                "role": {"enum": ["user", "assistant", "system", "developer"]},
                "content": _CONTENT.schema,
            },
            "required": ["role", "content"],
        },
        {**_CALL.schema, "required": ["type", *_CALL.required]},
        {**_OUTPUT.schema, "required": ["type", *_OUTPUT.required]},
    ]
}
_INPUT = Check(
    _input,
    {"anyOf": [{"type": "string"}, {"type": "array", "items": _ITEM_SCHEMA, "minItems": 1}]},
)

_TOOL = object_of(Table({**FUNCTION.fields, "type": one_of("function")}, required=("type", "name")))
_NAMED_CHOICE = object_of(
    Table({"type": one_of("function"), "name": tool_name}, required=("type", "name"))
)
_CHOICE_WORD = one_of("none", "auto", "required")
_TOOL_CHOICE = Check(
    lambda value, path: (_NAMED_CHOICE if isinstance(value, dict) else _CHOICE_WORD)(value, path),
    {"anyOf": [_CHOICE_WORD.schema, _NAMED_CHOICE.schema]},
)
_FORMAT = Table(
    {"type": one_of("text", "json_object", "json_schema"), **JSON_SCHEMA_FIELDS},
    required=("type",),
)
_TEXT = Table({"format": object_of(_FORMAT), "verbosity": only()})

RESPONSES = Table(
    {
        "model": string,
        "input": _INPUT,
        "instructions": string,
        "max_output_tokens": integer(1),
        "temperature": number(0, 2),
        "top_p": number(0, 1, above_low=True),
        "top_logprobs": integer(0, CHAT_MAX_LOGPROBS),
        "include": array(one_of(LOGPROBS), most=1),
        "stream": boolean,
        "stream_options": object_of(Table({"include_obfuscation": only(False)})),
        "tools": array(_TOOL, most=MAX_TOOLS),
        "tool_choice": _TOOL_CHOICE,
        "parallel_tool_calls": boolean,
        "text": object_of(_TEXT),
        "metadata": mapping,
        "user": string,
        "truncation": only("disabled"),
        "background": only(False),
        # Nothing is stored here, so nothing can be gone on with.
        "previous_response_id": only(),
        "conversation": only(),
        "prompt": only(),
        "reasoning": only({}),
        "max_tool_calls": only(),
    },
    required=("model", "input"),
    ignored=frozenset({"store", "service_tier", "safety_identifier", "prompt_cache_key"}),
)


def parse_responses(body: Mapping[str, Any]) -> ResponsesRequest:
    """Validate a body of POST /v1/responses. Raises `InvalidRequest`."""
    values = RESPONSES.parse(body)
    messages = values["input"]
    if instructions := values.get("instructions"):
        messages = [{"role": "system", "content": instructions}, *messages]
    wants_logprobs = LOGPROBS in values.get("include", ())
    if "top_logprobs" in values and not wants_logprobs:
        raise InvalidRequest(f"top_logprobs needs {LOGPROBS!r} in include", param="top_logprobs")
    chat: dict[str, Any] = {"model": values["model"], "messages": messages}
    if wants_logprobs:
        chat.update(logprobs=True, top_logprobs=values.get("top_logprobs", 0))
    if tools := values.get("tools"):
        chat["tools"] = [
            {"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}}
            for tool in tools
        ]
    choice = values.get("tool_choice")
    if isinstance(choice, dict):
        chat["tool_choice"] = {"type": "function", "function": {"name": choice["name"]}}
    elif choice is not None:
        chat["tool_choice"] = choice
    chat["max_completion_tokens"] = values.get("max_output_tokens")
    text_format = values.get("text", {}).get("format", {"type": "text"})
    chat["response_format"] = _response_format(text_format)
    for name in ("temperature", "top_p", "stream", "parallel_tool_calls", "user"):
        chat[name] = values.get(name)
    return ResponsesRequest(parse_chat(chat, max_n=1), _repeated(values))


def _response_format(text_format: Mapping[str, Any]) -> dict[str, Any]:
    """What chat completions call it: there the schema is one level down."""
    described = {name: value for name, value in text_format.items() if name != "type"}
    if text_format["type"] != "json_schema":
        return {"type": text_format["type"]}
    return {"type": "json_schema", "json_schema": described}


def _repeated(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "instructions": values.get("instructions"),
        "max_output_tokens": values.get("max_output_tokens"),
        "metadata": values.get("metadata", {}),
        "parallel_tool_calls": values.get("parallel_tool_calls", True),
        "previous_response_id": None,
        "store": False,
        "temperature": values.get("temperature"),
        "text": {"format": values.get("text", {}).get("format", {"type": "text"})},
        "tool_choice": values.get("tool_choice", "auto"),
        "tools": [
            {"description": None, "parameters": None, "strict": False, **tool}
            for tool in values.get("tools", ())
        ],
        "top_logprobs": values.get("top_logprobs", 0),
        "top_p": values.get("top_p"),
        "truncation": "disabled",
        "user": values.get("user"),
    }
