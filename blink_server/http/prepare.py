"""From a validated request to what a session takes: prompt ids, sampling, limits."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from blink_server.backend import GenerateRequest, Grammar, SamplingParams, SessionLimits
from blink_server.errors import InvalidRequest
from blink_server.http.model_entry import ModelEntry
from blink_server.http.openai_fields import Prompt
from blink_server.http.openai_requests import ChatRequest, CompletionRequest
from blink_server.http.text_parts import TextParts
from blink_server.http.tool_constraints import constrained_calls
from blink_server.text.grammar.constraint import Constraint

LONG_TEXT = 8192  # characters; from here on encoding (about 1 MB/s) would hold up other streams
LONGEST_TEXT = 1 << 20  # bytes; what is encoded where no context bounds it
BELOW_ONE = 1.0 - 2.0**-24  # the float32 next below 1: a min_p of 1 keeps the best tokens only

AnyRequest = CompletionRequest | ChatRequest


async def encode_prompts(
    request: AnyRequest, entry: ModelEntry, limits: SessionLimits
) -> list[list[int]]:
    """The token ids of each prompt of a request; a chat has one.

    Raises `InvalidRequest` for a prompt that the model cannot take.
    """
    text = entry.text
    assert text is not None, "only entries that serve are leased"
    if isinstance(request, ChatRequest) and len(request.messages) > limits.context_length:
        raise InvalidRequest(
            f"messages has {len(request.messages)} entries; the model's context holds "
            f"{limits.context_length} tokens",
            param="messages",
            code="context_length_exceeded",
        )
    # A longer text cannot fit, and to find out by encoding it would take seconds and gigabytes.
    longest = limits.context_length * text.tokenizer.longest_token
    encoded = await encode_prompts_unchecked(request, entry, longest=longest)
    for ids in encoded:
        _check_prompt(ids, limits, _param(request))
    return encoded


def _param(request: AnyRequest) -> str:
    return "messages" if isinstance(request, ChatRequest) else "prompt"


async def encode_prompts_unchecked(
    request: AnyRequest, entry: ModelEntry, *, longest: int = LONGEST_TEXT
) -> list[list[int]]:
    """The same up to `longest` bytes of text, whether or not the model's limits allow it."""
    if isinstance(request, ChatRequest):
        prompts: Sequence[Prompt] = [_render(request, entry)]
    else:
        prompts = request.prompts
    encoded = []
    for prompt in prompts:
        if isinstance(prompt, str):
            prompt = await encode_text(
                prompt,
                entry,
                add_special_tokens=request.add_special_tokens,
                longest=longest,
                param=_param(request),
            )
        encoded.append(list(prompt))
    return encoded


async def encode_text(
    prompt: str,
    entry: ModelEntry,
    *,
    add_special_tokens: bool,
    longest: int = LONGEST_TEXT,
    param: str = "prompt",
) -> list[int]:
    """Token ids of one text; special tokens are the tokenizer's own and the config's BOS id.

    Raises `InvalidRequest` for text that cannot be encoded, or has more than `longest` bytes.
    """
    text = entry.text
    assert text is not None, "only entries that serve are leased"
    if len(prompt) > longest or len(prompt.encode(errors="replace")) > longest:
        raise InvalidRequest(
            f"{param} is a text of {len(prompt)} characters; at most {longest} bytes are taken",
            param=param,
            code="context_length_exceeded",
        )

    def encode() -> list[int]:
        return text.tokenizer.encode(prompt, add_special_tokens=add_special_tokens)

    ids = encode() if len(prompt) < LONG_TEXT else await asyncio.to_thread(encode)
    bos = entry.version.config.get("bos_token_id") if add_special_tokens else None
    return [bos, *ids] if bos is not None and ids[:1] != [bos] else ids


def _render(request: ChatRequest, entry: ModelEntry) -> str:
    text = entry.text
    assert text is not None, "only entries that serve are leased"
    name, template, use = entry.version.model, text.chat_template, request.tool_use
    if template is None:
        raise InvalidRequest(
            f"the model {name!r} has no chat template; use /v1/completions",
            param="model",
            code="no_chat_template",
        )
    if use is None:
        opening = ""
    elif not template.takes_tools:
        file = entry.version.config.get("chat_template")
        raise InvalidRequest(
            f"{name!r} cannot be told of tools: its chat template ({file}) writes none; leave them "
            'out, or send tool_choice "none"',
            param="tools",
            code="template_without_tools",
        )
    elif text.tool_format is None:
        raise InvalidRequest(
            f"how {name!r} writes tool calls is not known: its config.json has no tool_parser",
            param="tools",
        )
    else:
        opening = text.tool_format.opening(use.name) if use.required else ""
    prompt = template.render(
        request.messages,
        tools=None if use is None else use.tools,
        add_generation_prompt=request.add_generation_prompt,
        variables=request.template_variables,
    )
    return prompt + opening


def _check_prompt(ids: Sequence[int], limits: SessionLimits, param: str) -> None:
    if not ids:
        raise InvalidRequest(f"{param} has no tokens", param=param)
    if max(ids) >= limits.vocabulary_size:
        raise InvalidRequest(
            f"{param} has the token id {max(ids)}; the vocabulary ends at "
            f"{limits.vocabulary_size - 1}",
            param=param,
        )
    if len(ids) >= limits.context_length:
        raise InvalidRequest(
            f"{param} has {len(ids)} tokens; the model's context of {limits.context_length} "
            "must also hold one generated token",
            param=param,
            code="context_length_exceeded",
        )


def echoed_prompts(request: AnyRequest, entry: ModelEntry) -> list[str] | None:
    """The text of each prompt where the answer shall begin with it, else None."""
    if not isinstance(request, CompletionRequest) or not request.echo:
        return None
    text = entry.text
    assert text is not None, "only entries that serve are leased"
    return [
        prompt
        if isinstance(prompt, str)
        else text.tokenizer.decode(prompt, skip_special_tokens=request.skip_special_tokens)
        for prompt in request.prompts
    ]


def answer_constraint(request: AnyRequest, text: TextParts) -> Constraint | None:
    """What the text of each answer must be; of one that may call tools, its calls too."""
    if not isinstance(request, ChatRequest) or request.tool_use is None or text.tool_format is None:
        return request.constraint
    return constrained_calls(request.tool_use, text.tool_format, request.constraint)


def shown_special_tokens(request: AnyRequest, text: TextParts) -> Collection[str]:
    """Names of special tokens that an answer's text has: those that mark its calls."""
    calls = isinstance(request, ChatRequest) and request.tool_use is not None
    return text.tool_format.special_tokens if calls and text.tool_format is not None else ()


def generate_request(
    request: AnyRequest,
    entry: ModelEntry,
    limits: SessionLimits,
    *,
    prompt_ids: Sequence[int],
    number: int,
    request_id: str,
    grammar: Grammar | None = None,
    against: Mapping[int, float] | None = None,
) -> GenerateRequest:
    """The record for choice `number` (from 0) of one prompt. `against`: the bias of bad words.

    `max_tokens` is cut to what the context leaves. With a seed, choice i gets seed + i. Raises
    `InvalidRequest` for token ids outside the vocabulary and too many log-probabilities.
    """
    _check_ids(request, limits)
    room = limits.context_length - len(prompt_ids)
    max_tokens = room if request.max_tokens is None else min(request.max_tokens, room)
    sampling = {**entry.version.config.get("default_sampling", {}), **request.sampling}
    if against:
        # A token that the model has no logit for never comes.
        bias = {token: value for token, value in against.items() if token < limits.vocabulary_size}
        sampling["logit_bias"] = {**sampling.get("logit_bias", {}), **bias}
    return GenerateRequest(
        prompt_ids=prompt_ids,
        max_tokens=max_tokens,
        min_tokens=min(request.min_tokens, max_tokens),
        sampling=_sampling(sampling, request.logprobs, number),
        stop_token_ids=(*request.stop_token_ids, *_end_ids(request, limits)),
        ignore_eos=request.ignore_eos,
        priority=request.priority,
        grammar=grammar,
        request_id=request_id,
    )


def _end_ids(request: AnyRequest, limits: SessionLimits) -> Sequence[int]:
    """The token that ends this answer too; none where it ends every answer of the model."""
    end_id = request.end_id if isinstance(request, CompletionRequest) else None
    return () if end_id is None or end_id in limits.eos_token_ids else (end_id,)


def _sampling(values: Mapping[str, Any], logprobs: int | None, number: int) -> SamplingParams:
    seed = values.get("seed")
    fields = {
        **values,
        "top_k": max(values.get("top_k", 0), 0),
        "min_p": min(values.get("min_p", 0.0), BELOW_ONE),
        "seed": random.getrandbits(64) if seed is None else (seed + number) % 2**64,
        "logprobs": logprobs,
    }
    return SamplingParams(**fields)


def _check_ids(request: AnyRequest, limits: SessionLimits) -> None:
    bias = request.sampling.get("logit_bias", {})
    stops = {"end_id": _end_ids(request, limits), "stop_token_ids": request.stop_token_ids}
    for param, ids in {**stops, "logit_bias": bias}.items():
        if ids and max(ids) >= limits.vocabulary_size:
            raise InvalidRequest(
                f"{param} has the token id {max(ids)}; the vocabulary ends at "
                f"{limits.vocabulary_size - 1}",
                param=param,
            )
    if request.logprobs is not None and request.logprobs > limits.max_logprobs:
        param = "top_logprobs" if isinstance(request, ChatRequest) else "logprobs"
        raise InvalidRequest(
            f"{param} is {request.logprobs}; this model gives at most {limits.max_logprobs}",
            param=param,
        )
