"""The fields of OpenAI request bodies: what each may hold, and what is refused by name.

Fields are those of OpenAI's API and the extensions common to vLLM and SGLang. A field that would
change the answer and is not served yet is refused; a known field that changes nothing is ignored.
"""

from __future__ import annotations

import functools
import json
from typing import Any

from blink_server.errors import InvalidRequest
from blink_server.http import fields
from blink_server.http.constraints import CONSTRAINTS
from blink_server.http.fields import (
    Check,
    Table,
    array,
    boolean,
    integer,
    number,
    object_of,
    only,
    refuse,
    string,
)
from blink_server.http.messages import messages
from blink_server.http.tool_fields import tool_choice, tools

MAX_STOP_STRINGS = 16
MAX_STOP_TOKEN_IDS = 128
MAX_LOGIT_BIAS = 1024
MAX_PROMPTS = 256
COMPLETION_MAX_LOGPROBS = 5
CHAT_MAX_LOGPROBS = 20

Prompt = str | list[int]


def _stop(value: Any, path: str) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > MAX_STOP_STRINGS:
        raise refuse(path, value, f"a string or a list of at most {MAX_STOP_STRINGS} strings")
    for place, stop in enumerate(stops):
        if not isinstance(stop, str) or not stop:
            where = path if isinstance(value, str) else f"{path}[{place}]"
            raise refuse(where, stop, "a string that is not empty")
    return tuple(stops)


_STOP_SCHEMA = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {
            "type": "array",
            "items": {"type": "string", "minLength": 1},
            "maxItems": MAX_STOP_STRINGS,
        },
    ]
}


def _logit_bias(value: Any, path: str) -> dict[int, float]:
    pairs = fields.mapping(value, path)
    if len(pairs) > MAX_LOGIT_BIAS:
        raise InvalidRequest(f"{path} has more than {MAX_LOGIT_BIAS} entries", param=path)
    bias = number(-100, 100)
    for token in pairs:
        if not (token.isascii() and token.isdigit() and len(token) < 19):
            raise InvalidRequest(
                f"{path} has the key {json.dumps(token[:60])}; its keys must be token ids",
                param=path,
            )
    return {int(token): bias(one, f"{path}.{token}") for token, one in pairs.items()}


_LOGIT_BIAS_SCHEMA = {
    "type": "object",
    "patternProperties": {"^[0-9]{1,18}$": {"type": "number", "minimum": -100, "maximum": 100}},
    "additionalProperties": False,
    "maxProperties": MAX_LOGIT_BIAS,
}


def _prompts(value: Any, path: str) -> tuple[Prompt, ...]:
    if isinstance(value, list) and _is_ids(value):
        return (_token_ids(value, path, path),)
    if isinstance(value, str):
        value = [value]
    expected = "a string, a list of strings, a list of token ids or a list of such lists"
    if not isinstance(value, list) or not value:
        raise refuse(path, value, f"{expected}, and not empty")
    if len(value) > MAX_PROMPTS:
        raise InvalidRequest(f"{path} has more than {MAX_PROMPTS} prompts", param=path)
    prompts: list[Prompt] = []
    for place, one in enumerate(value):
        if isinstance(one, list):
            prompts.append(_token_ids(one, f"{path}[{place}]", path))
        elif isinstance(one, str) and one:
            prompts.append(one)
        else:
            raise refuse(path, one, f"{expected}, and not empty")
    return tuple(prompts)


def _token_ids_field(value: Any, path: str) -> list[int]:
    return _token_ids(value if isinstance(value, list) else [], path, path)


def _token_ids(value: list[Any], path: str, param: str) -> list[int]:
    if not value:
        raise refuse(path, value, "a list of token ids, and not empty", param=param)
    # Prompts are long: no path is made for items that are right.
    for place, one in enumerate(value):
        if type(one) is float and one.is_integer():  # 7.0 is a whole number in JSON
            value[place] = one = int(one)
        if type(one) is not int or not 0 <= one < 2**31:
            raise refuse(f"{path}[{place}]", one, "a token id, 0 or more", param=param)
    return value


def _is_ids(value: list[Any]) -> bool:
    return bool(value) and isinstance(value[0], int | float) and not isinstance(value[0], bool)


_IDS_SCHEMA = {
    "type": "array",
    "items": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1},
    "minItems": 1,
}
_TEXT_SCHEMA = {"type": "string", "minLength": 1}
_PROMPTS_SCHEMA = {
    "anyOf": [
        _TEXT_SCHEMA,
        _IDS_SCHEMA,
        {
            "type": "array",
            "items": {"anyOf": [_TEXT_SCHEMA, _IDS_SCHEMA]},
            "minItems": 1,
            "maxItems": MAX_PROMPTS,
        },
    ]
}

token_ids = Check(_token_ids_field, _IDS_SCHEMA)
"""A list of token ids, and not empty."""

prompts = Check(_prompts, _PROMPTS_SCHEMA)
"""One or several prompts, as texts or as token ids; the value is a tuple of them."""

_STREAM_OPTIONS = Table(
    {
        "include_usage": boolean,
        "continuous_usage_stats": boolean,
        "include_obfuscation": only(False),
    }
)

SAMPLING: dict[str, Check] = {
    "temperature": number(0, 2),
    "top_p": number(0, 1, above_low=True),
    "top_k": integer(-1, 2**31 - 1),
    "min_p": number(0, 1),
    "repetition_penalty": number(0, above_low=True),
    "presence_penalty": number(-2, 2),
    "frequency_penalty": number(-2, 2),
    "seed": integer(-(2**63), 2**64 - 1),
    "logit_bias": Check(_logit_bias, _LOGIT_BIAS_SCHEMA),
}

_COMMON: dict[str, Check] = {
    **SAMPLING,
    "model": string,
    "max_tokens": integer(1),
    "min_tokens": integer(0),
    "stop": Check(_stop, _STOP_SCHEMA),
    "stop_token_ids": array(integer(0), most=MAX_STOP_TOKEN_IDS),
    "ignore_eos": boolean,
    "stream": boolean,
    "stream_options": object_of(_STREAM_OPTIONS),
    "skip_special_tokens": boolean,
    "include_stop_str_in_output": boolean,
    "add_special_tokens": boolean,
    "priority": integer(-(2**63), 2**63 - 1),
    "user": string,
    **CONSTRAINTS,
    # Known fields that would change the answer: served at their neutral value only.
    "best_of": only(1),
    "use_beam_search": only(False),
    "spaces_between_special_tokens": only(True),
    "return_tokens_as_token_ids": only(False),
    "return_token_ids": only(False),
    "prompt_logprobs": only(),
    "truncate_prompt_tokens": only(),
}

_COMPLETION: dict[str, Check] = {
    **_COMMON,
    "prompt": prompts,
    "logprobs": integer(0, COMPLETION_MAX_LOGPROBS),
    "echo": boolean,
    "suffix": only(""),
}

_CHAT: dict[str, Check] = {
    **_COMMON,
    "messages": messages,
    "max_completion_tokens": integer(1),
    "logprobs": boolean,
    "top_logprobs": integer(0, CHAT_MAX_LOGPROBS),
    "add_generation_prompt": boolean,
    "chat_template_kwargs": fields.mapping,
    "tools": tools,
    "tool_choice": tool_choice,
    "parallel_tool_calls": boolean,
    "functions": only([]),
    "function_call": only("none", "auto"),
    "modalities": only(["text"]),
    "audio": only(),
    "prediction": only(),
    "web_search_options": only(),
    "reasoning_effort": only(),
    "verbosity": only(),
    "chat_template": only(),
    "documents": only([]),
    "continue_final_message": only(False),
    "echo": only(False),
}

_IGNORED = frozenset(
    {
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "request_id",
        "cache_salt",
    }
)


@functools.cache
def completion_table(max_n: int) -> Table:
    """What a body of POST /v1/completions may hold."""
    fields = {**_COMPLETION, "n": integer(1, max_n)}
    return Table(fields, ("model", "prompt"), _IGNORED | {"parallel_tool_calls"})


@functools.cache
def chat_table(max_n: int) -> Table:
    """What a body of POST /v1/chat/completions may hold."""
    return Table({**_CHAT, "n": integer(1, max_n)}, ("model", "messages"), _IGNORED)
