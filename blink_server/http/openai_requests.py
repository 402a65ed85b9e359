"""OpenAI request bodies as validated records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blink_server.errors import InvalidRequest
from blink_server.http.constraints import constraint_of
from blink_server.http.fields import refuse
from blink_server.http.openai_fields import SAMPLING, Prompt, chat_table, completion_table
from blink_server.http.tool_fields import ToolUse, tool_use
from blink_server.text.grammar.constraint import Constraint

COMPLETION_MAX_TOKENS = 16  # OpenAI's default for /v1/completions
MAX_CHOICES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRequest:
    """A validated request for text. `sampling` holds only the sampling fields that were given.

    `max_tokens` None: as many as the context allows. `logprobs` None: none wanted; otherwise the
    number of best tokens to tell beside the chosen one. `constraint`: what each answer must be.
    """

    model: str
    max_tokens: int | None
    min_tokens: int
    n: int
    sampling: Mapping[str, Any]
    logprobs: int | None
    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    ignore_eos: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool
    skip_special_tokens: bool
    include_stop: bool
    add_special_tokens: bool
    priority: int
    user: str | None
    constraint: Constraint | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest(TextRequest):
    """A body of POST /v1/completions; each prompt is a text or token ids, and not empty.

    `echo` puts the prompt before each text. Those of Triton's routes may have `bad_words`, which no
    text must have, and an `end_id`, a token that ends a text besides the model's own.
    """

    prompts: tuple[Prompt, ...]
    echo: bool
    bad_words: tuple[str, ...] = ()
    end_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest(TextRequest):
    """A body of POST /v1/chat/completions; each message's content has become a string.

    `tool_use` None: the answer calls no tools.
    """

    messages: tuple[dict[str, Any], ...]
    tool_use: ToolUse | None
    add_generation_prompt: bool
    template_variables: Mapping[str, Any]


def parse_completion(body: Mapping[str, Any], *, max_n: int) -> CompletionRequest:
    """Validate a body of POST /v1/completions. Raises `InvalidRequest`."""
    values = completion_table(max_n).parse(body)
    if len(values["prompt"]) * values.get("n", 1) > MAX_CHOICES:
        raise InvalidRequest(f"prompts times n is more than {MAX_CHOICES}", param="n")
    echo = values.get("echo", False)
    if echo and "logprobs" in values:
        raise InvalidRequest(
            "echo with logprobs is not supported by this server: prompts have no log-probabilities",
            param="echo",
        )
    return CompletionRequest(
        prompts=values["prompt"],
        echo=echo,
        **_common(
            values,
            max_tokens=values.get("max_tokens", COMPLETION_MAX_TOKENS),
            logprobs=values.get("logprobs"),
            add_special_tokens=values.get("add_special_tokens", True),
        ),
    )


def parse_chat(body: Mapping[str, Any], *, max_n: int) -> ChatRequest:
    """Validate a body of POST /v1/chat/completions. Raises `InvalidRequest`."""
    values = chat_table(max_n).parse(body)
    if "top_logprobs" in values and not values.get("logprobs"):
        raise InvalidRequest("top_logprobs needs logprobs to be true", param="top_logprobs")
    return ChatRequest(
        messages=values["messages"],
        tool_use=tool_use(values),
        add_generation_prompt=values.get("add_generation_prompt", True),
        template_variables=values.get("chat_template_kwargs", {}),
        **_common(
            values,
            max_tokens=values.get("max_completion_tokens", values.get("max_tokens")),
            logprobs=values.get("top_logprobs", 0) if values.get("logprobs") else None,
            # A chat template writes the special tokens itself.
            add_special_tokens=values.get("add_special_tokens", False),
        ),
    )


def _common(
    values: Mapping[str, Any],
    *,
    max_tokens: int | None,
    logprobs: int | None,
    add_special_tokens: bool,
) -> dict[str, Any]:
    stream, options = values.get("stream", False), values.get("stream_options")
    if options is not None and not stream:
        raise InvalidRequest("stream_options needs stream to be true", param="stream_options")
    options = options or {}
    min_tokens = values.get("min_tokens", 0)
    if max_tokens is not None and min_tokens > max_tokens:
        raise refuse("min_tokens", min_tokens, f"at most max_tokens, {max_tokens}")
    return {
        "model": values["model"],
        "max_tokens": max_tokens,
        "min_tokens": min_tokens,
        "n": values.get("n", 1),
        "sampling": {name: values[name] for name in SAMPLING if name in values},
        "logprobs": logprobs,
        "stop": values.get("stop", ()),
        "stop_token_ids": tuple(values.get("stop_token_ids", ())),
        "ignore_eos": values.get("ignore_eos", False),
        "stream": stream,
        "include_usage": options.get("include_usage", False),
        "continuous_usage": options.get("continuous_usage_stats", False),
        "skip_special_tokens": values.get("skip_special_tokens", True),
        "include_stop": values.get("include_stop_str_in_output", False),
        "add_special_tokens": add_special_tokens,
        "priority": values.get("priority", 0),
        "user": values.get("user"),
        "constraint": constraint_of(values),
    }
