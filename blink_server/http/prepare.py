"""From a validated request to what a session takes: prompt ids, sampling, limits."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Any

from blink_server.backend import GenerateRequest, SamplingParams, SessionLimits
from blink_server.errors import InvalidRequest
from blink_server.http.models import ModelEntry, TextParts
from blink_server.http.openai_fields import Prompt
from blink_server.http.openai_requests import ChatRequest, CompletionRequest

LONG_TEXT = 8192  # characters; from here on encoding (about 1 MB/s) would hold up other streams
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
    if isinstance(request, ChatRequest):
        prompts: Sequence[Prompt] = [_render(request, text, entry)]
        param = "messages"
    else:
        prompts, param = request.prompts, "prompt"
    bos = entry.version.config.get("bos_token_id") if request.add_special_tokens else None
    encoded = []
    for prompt in prompts:
        if isinstance(prompt, str):
            ids = await _encode(prompt, text, request.add_special_tokens)
            if bos is not None and ids[:1] != [bos]:
                ids = [bos, *ids]
        else:
            ids = prompt
        _check_prompt(ids, limits, param)
        encoded.append(ids)
    return encoded


def _render(request: ChatRequest, text: TextParts, entry: ModelEntry) -> str:
    if text.chat_template is None:
        raise InvalidRequest(
            f"the model {entry.version.model!r} has no chat template; use /v1/completions",
            param="model",
            code="no_chat_template",
        )
    return text.chat_template.render(
        request.messages,
        add_generation_prompt=request.add_generation_prompt,
        variables=request.template_variables,
    )


async def _encode(prompt: str, text: TextParts, add_special_tokens: bool) -> list[int]:
    def encode() -> list[int]:
        return text.tokenizer.encode(prompt, add_special_tokens=add_special_tokens)

    return encode() if len(prompt) < LONG_TEXT else await asyncio.to_thread(encode)


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


def generate_request(
    request: AnyRequest,
    entry: ModelEntry,
    limits: SessionLimits,
    *,
    prompt_ids: Sequence[int],
    number: int,
    request_id: str,
) -> GenerateRequest:
    """The record for choice `number` (from 0) of one prompt.

    `max_tokens` is cut to what the context leaves. With a seed, choice i gets seed + i. Raises
    `InvalidRequest` for token ids outside the vocabulary and too many log-probabilities.
    """
    _check_ids(request, limits)
    room = limits.context_length - len(prompt_ids)
    max_tokens = room if request.max_tokens is None else min(request.max_tokens, room)
    defaults = entry.version.config.get("default_sampling", {})
    return GenerateRequest(
        prompt_ids=prompt_ids,
        max_tokens=max_tokens,
        min_tokens=min(request.min_tokens, max_tokens),
        sampling=_sampling({**defaults, **request.sampling}, request.logprobs, number),
        stop_token_ids=request.stop_token_ids,
        ignore_eos=request.ignore_eos,
        priority=request.priority,
        request_id=request_id,
    )


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
    for param, ids in (("stop_token_ids", request.stop_token_ids), ("logit_bias", bias)):
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
