"""A request as the other server is asked it: path and JSON body."""

from __future__ import annotations

import json
from typing import Any

from blink_server.backend import GenerateRequest, SamplingParams
from blink_server.errors import InvalidRequest

from .calls import CHAT_MARK
from .tokens import FIRST_BYTE, TextTokenizer

_PLAIN = SamplingParams()
_EXTRAS = ("top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


def asked(request: GenerateRequest, model: str, context_length: int) -> tuple[str, dict[str, Any]]:
    """`chat/completions` or `completions`, and the body. Raises InvalidRequest.

    What is as it would be anyway is left out: strict servers refuse fields that they do not know.
    """
    path, body = _prompt(request)
    sampling = request.sampling
    body |= {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": sampling.seed % (1 << 31),  # what every server takes
    }
    body |= {
        name: value
        for name in _EXTRAS
        if (value := getattr(sampling, name)) != getattr(_PLAIN, name)
    }
    if sampling.logit_bias:
        body["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
    optional = {
        "max_tokens": _max_tokens(request, context_length, chat=path.startswith("chat")),
        "min_tokens": request.min_tokens,
        "stop_token_ids": list(request.stop_token_ids),
        "ignore_eos": request.ignore_eos,
        "priority": request.priority,
    }
    return path, body | {name: value for name, value in optional.items() if value}


def _max_tokens(request: GenerateRequest, context_length: int, *, chat: bool) -> int | None:
    """None where the other server is to answer as long as it can."""
    if request.max_tokens < context_length:
        return request.max_tokens
    # Completions of unsaid length are short by OpenAI's rule; a byte is a token at most.
    return None if chat else max(context_length - len(request.prompt_ids), 1)


def _prompt(request: GenerateRequest) -> tuple[str, dict[str, Any]]:
    ids = request.prompt_ids
    if max(ids) < FIRST_BYTE:
        return "completions", {"prompt": list(ids)}
    if min(ids) < FIRST_BYTE:
        raise InvalidRequest("prompt mixes text with token ids", param="prompt")
    text = TextTokenizer().decode(ids)
    if not text.startswith(CHAT_MARK):
        return "completions", {"prompt": text}
    try:
        fields, end = json.JSONDecoder().raw_decode(text, len(CHAT_MARK))
        forced = text[end:].strip("\x1e\x1f\n")
        body = {name: value for name, value in fields.items() if value is not None}
        body["messages"] = [_message(message) for message in body["messages"]]
        if forced:
            body["tool_choice"] = _choice(json.loads(forced)["forced"])
    except (ValueError, KeyError, AttributeError) as error:
        raise InvalidRequest(f"the chat template wrote no JSON: {error}") from None
    return "chat/completions", body


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """As OpenAI's API has it: templates are given the arguments of calls as objects."""
    calls = [
        {**call, "function": {**call["function"], "arguments": _text(call["function"])}}
        for call in message.get("tool_calls") or ()
    ]
    return {**message, "tool_calls": calls} if calls else message


def _text(function: dict[str, Any]) -> str:
    arguments = function["arguments"]
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def _choice(name: str | None) -> Any:
    return "required" if name is None else {"type": "function", "function": {"name": name}}
