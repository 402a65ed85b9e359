from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from blink_persistent import _native
from blink_persistent.frontend.grammars import GrammarSpan
from blink_persistent.frontend.record import prepare
from blink_persistent.frontend.space import Place
from blink_persistent.ring import RECORD
from blink_server.backend import GenerateRequest, SamplingParams, SessionLimits
from blink_server.errors import InvalidRequest

LIMITS = SessionLimits(context_length=64, vocabulary_size=100, eos_token_ids=(2,), max_logprobs=20)


def request(*, sampling: dict[str, Any] | None = None, **fields: Any) -> GenerateRequest:
    defaults: dict[str, Any] = {"prompt_ids": [5, 6, 7], "max_tokens": 10}
    return GenerateRequest(**{**defaults, **fields}, sampling=SamplingParams(**(sampling or {})))


def record_of(generate: GenerateRequest, place: Place) -> dict[str, Any]:
    records = np.zeros(1, RECORD)
    records[0] = prepare(generate, LIMITS).record(place, GrammarSpan(4096, 77))
    return {name: records[name][0].item() for name in RECORD.names}


def test_every_field_of_the_record_is_written() -> None:
    sampling = {
        "temperature": 0.5,
        "top_p": 0.75,
        "top_k": 40,
        "min_p": 0.25,
        "repetition_penalty": 1.5,
        "presence_penalty": -0.5,
        "frequency_penalty": 2.0,
        "seed": 2**64 - 1,
        "logprobs": 3,
        "logit_bias": {9: -100.0, 4: 2.5},
    }
    generate = request(
        sampling=sampling, min_tokens=2, stop_token_ids=[8, 1], ignore_eos=True, priority=1
    )
    record = record_of(generate, Place(slot=3, prompt=40, output=200, aux=70))
    assert record == {
        **{name: sampling[name] for name in sampling if name not in ("logprobs", "logit_bias")},
        "prompt_offset": 40,
        "prompt_length": 3,
        "output_offset": 200,
        "max_tokens": 10,
        "min_tokens": 2,
        "logprobs_offset": 210,
        "logprobs": 4,
        "stop_offset": 70,
        "stop_count": 2,
        "bias_offset": 72,
        "bias_count": 2,
        "priority": 1,
        "flags": _native.IGNORE_EOS,
        "grammar_offset": 4096,
        "grammar_words": 77,
    }


def test_data_beside_the_record() -> None:
    prepared = prepare(
        request(sampling={"logit_bias": {9: -100.0, 4: 2.5}, "logprobs": 3}, stop_token_ids=[8]),
        LIMITS,
    )
    assert prepared.prompt.tolist() == [5, 6, 7]
    assert prepared.aux[:1].tolist() == [8]
    assert prepared.aux[1::2].tolist() == [9, 4]
    assert prepared.aux[2::2].view(np.float32).tolist() == [-100.0, 2.5]
    assert prepared.output_words == 10 * (1 + _native.logprob_words(4))


@pytest.mark.parametrize(("asked", "granted"), [(1, 1), (61, 61), (62, 61), (10**9, 61)])
def test_max_tokens_is_cut_to_what_the_context_leaves(asked: int, granted: int) -> None:
    prepared = prepare(request(max_tokens=asked, min_tokens=asked), LIMITS)
    assert prepared.max_tokens == granted
    assert prepared.fields["min_tokens"] == granted


def test_values_that_the_ring_cannot_tell_apart_are_cut() -> None:
    prepared = prepare(request(sampling={"top_k": 10**12, "top_p": 1e-300}), LIMITS)
    assert prepared.fields["top_k"] == LIMITS.vocabulary_size
    assert np.float32(prepared.fields["top_p"]) > 0


@pytest.mark.parametrize(
    ("asked", "level"), [(-(2**63), 0), (-1, 0), (0, 0), (3, 3), (4, 3), (2**63 - 1, 3)]
)
def test_a_priority_is_the_nearest_of_four_levels(asked: int, level: int) -> None:
    assert prepare(request(priority=asked), LIMITS).fields["priority"] == level


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("prompt", {"prompt_ids": []}),
        ("prompt", {"prompt_ids": [3] * 64}),
        ("prompt", {"prompt_ids": [3, 100]}),
        ("prompt", {"prompt_ids": [-1, 3]}),
        ("prompt", {"prompt_ids": [2**70]}),
        ("max_tokens", {"max_tokens": 0}),
        ("min_tokens", {"min_tokens": -1}),
        ("stop_token_ids", {"stop_token_ids": [100]}),
        ("logit_bias", {"sampling": {"logit_bias": {100: 1.0}}}),
        ("logit_bias", {"sampling": {"logit_bias": {1: math.nan}}}),
        ("logprobs", {"sampling": {"logprobs": 21}}),
        ("logprobs", {"sampling": {"logprobs": -1}}),
        ("temperature", {"sampling": {"temperature": -0.1}}),
        ("temperature", {"sampling": {"temperature": math.nan}}),
        ("temperature", {"sampling": {"temperature": math.inf}}),
        ("top_p", {"sampling": {"top_p": 0.0}}),
        ("top_p", {"sampling": {"top_p": 1.1}}),
        ("top_k", {"sampling": {"top_k": -1}}),
        ("min_p", {"sampling": {"min_p": 1.0}}),
        ("repetition_penalty", {"sampling": {"repetition_penalty": 0.0}}),
        ("presence_penalty", {"sampling": {"presence_penalty": 2.1}}),
        ("frequency_penalty", {"sampling": {"frequency_penalty": -2.1}}),
        ("seed", {"sampling": {"seed": 2**64}}),
    ],
)
def test_beyond_a_limit_is_refused_by_name(param: str, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=param) as caught:
        prepare(request(**fields), LIMITS)
    assert caught.value.param == param


def test_the_longest_prompt_leaves_one_token() -> None:
    assert prepare(request(prompt_ids=[3] * 63), LIMITS).max_tokens == 1
