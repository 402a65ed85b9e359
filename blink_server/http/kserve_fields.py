"""What a request of KServe's v2 protocol may say of an answer, as Triton's LLM backends have it.

The names are those of Triton's vLLM backend, and the TensorRT-LLM backend's where they differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from blink_server.errors import InvalidRequest
from blink_server.http.bad_words import MOST as MOST_BAD_WORDS
from blink_server.http.fields import Schema, integer, refuse
from blink_server.http.json_values import parse
from blink_server.http.openai_fields import completion_table
from blink_server.http.openai_requests import CompletionRequest, parse_completion

TEXT_INPUT, TEXT_OUTPUT = "text_input", "text_output"

_SAME = frozenset(
    {
        "max_tokens",
        "min_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "stop",
        "stop_token_ids",
        "ignore_eos",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "include_stop_str_in_output",
        "skip_special_tokens",
        "priority",
    }
)
_TOKEN_ID = integer(0, 2**31 - 1)
_OTHER_NAMES = {
    "min_length": "min_tokens",
    "random_seed": "seed",
    "stop_words": "stop",
    "runtime_top_k": "top_k",
    "runtime_top_p": "top_p",
}
# Triton's TensorRT-LLM clients send these; here they have nothing to say. What pads a batch there
# is never seen, and no answer is padded.
_WITHOUT_EFFECT = frozenset({"pad_id", "id", "binary_data_output", "timeout"})


@dataclass(frozen=True, slots=True)
class TextQuestion:
    """What is to be generated, and whether each text begins with its prompt."""

    request: CompletionRequest
    stream: bool


def text_question(
    model: str, prompts: Sequence[str], given: Mapping[str, Any], *, max_n: int
) -> TextQuestion:
    """The request that `given`, the inputs and parameters beside the prompts, describes.

    As with Triton's vLLM backend an answer that is not streamed begins with its prompt, unless
    `exclude_input_in_output`. Raises InvalidRequest.
    """
    fields = {**given, **_sampling_parameters(given.get("sampling_parameters", "{}"))}
    fields.pop("sampling_parameters", None)
    stream = _flag(fields, "stream")
    exclude = _flag(fields, "exclude_input_in_output")
    body: dict[str, Any] = {"model": model, "prompt": list(prompts), "stream": stream}
    body["echo"] = not (exclude or stream)
    bad_words = _words(fields.pop("bad_words", None))
    end_id = fields.pop("end_id", None)
    end_id = None if end_id in (None, "", []) else _TOKEN_ID(end_id, "end_id")
    for name, value in fields.items():
        field = _OTHER_NAMES.get(name, name)
        if name == "stop_words" and isinstance(value, list):
            value = [word for word in value if word != ""]
        if field in _SAME:
            # An empty list of stop words is how some clients say that there are none.
            if value not in ("", []):
                body[field] = value
        elif name not in _WITHOUT_EFFECT:
            raise InvalidRequest(f"{name} is not known here", param=name)
    request = parse_completion(body, max_n=max_n)
    return TextQuestion(replace(request, bad_words=bad_words, end_id=end_id), stream)


def field_schemas(max_n: int) -> dict[str, Schema]:
    """What each field beside the prompt may be. `max_n`: most choices of one prompt."""
    checks = completion_table(max_n).fields
    names = {**{name: name for name in sorted(_SAME)}, **_OTHER_NAMES}
    nothing: Schema = {"enum": [None, "", []]}
    flag: Schema = {"type": "boolean"}
    words: Schema = {
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}, nothing]
    }
    return {
        **{name: {"anyOf": [checks[field].schema, nothing]} for name, field in names.items()},
        "stop_words": words,
        "sampling_parameters": {"anyOf": [{"type": "string"}, {"type": "object"}]},
        "exclude_input_in_output": flag,
        "stream": flag,
        "bad_words": words,
        "end_id": {"anyOf": [_TOKEN_ID.schema, nothing]},
        **{name: {} for name in sorted(_WITHOUT_EFFECT)},
    }


def _words(value: Any) -> tuple[str, ...]:
    """Bad words, without the empty ones by which some clients say that there are none."""
    given = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(given, list) or not all(isinstance(word, str) for word in given):
        raise refuse("bad_words", value, "a string or a list of strings")
    words = [word for word in given if word]
    if len(words) > MOST_BAD_WORDS:
        raise refuse("bad_words", value, f"at most {MOST_BAD_WORDS} words")
    return tuple(words)


def _flag(fields: dict[str, Any], name: str) -> bool:
    value = fields.pop(name, False)
    if not isinstance(value, bool):
        raise InvalidRequest(f"{name} is {value!r}; it must be true or false", param=name)
    return value


def _sampling_parameters(value: Any) -> dict[str, Any]:
    """A JSON object, as such or as text."""
    if isinstance(value, str):
        try:
            value = parse(value or "{}")
        except ValueError:
            value = None
    if not isinstance(value, dict):
        raise InvalidRequest("sampling_parameters must be a JSON object", param="parameters")
    return value
