"""A `GenerateRequest` checked against a version's limits and made ready for a slot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blink_persistent import _native
from blink_persistent.frontend.grammars import GrammarSpan
from blink_persistent.frontend.space import Place
from blink_persistent.ring import RECORD
from blink_server.backend import GenerateRequest, SamplingParams, SessionLimits
from blink_server.errors import InvalidRequest

_TINY = float(np.finfo(np.float32).tiny)
_HUGE = float(np.finfo(np.float32).max)

_SAMPLING: Sequence[tuple[str, Callable[[float], bool], str]] = (
    ("temperature", lambda value: 0 <= value <= _HUGE, "0 or more"),
    ("top_p", lambda value: 0 < value <= 1, "above 0 and at most 1"),
    ("top_k", lambda value: value >= 0, "0 or more"),
    ("min_p", lambda value: 0 <= value < 1, "0 or more and below 1"),
    ("repetition_penalty", lambda value: _TINY <= value <= _HUGE, "above 0"),
    ("presence_penalty", lambda value: -2 <= value <= 2, "from -2 to 2"),
    ("frequency_penalty", lambda value: -2 <= value <= 2, "from -2 to 2"),
    ("seed", lambda value: 0 <= value < 2**64, "a whole number of 64 bits"),
)


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """What is to be written for one request, but for where.

    prompt: int32 [prompt tokens]. aux: int32 [stop ids, then {id, float32 bits} of each bias].
    A token's entry in the log-probability buffer has `entry_words` words, `top` of the best
    tokens among them; 0 words where none are asked for.
    """

    prompt: npt.NDArray[np.int32]
    aux: npt.NDArray[np.int32]
    max_tokens: int
    entry_words: int
    top: int
    stop_count: int
    fields: Mapping[str, float]  # of the record, all but offsets

    @property
    def output_words(self) -> int:
        """Words of its output span: the tokens, then their log-probability entries."""
        return self.max_tokens * (1 + self.entry_words)

    def record(self, place: Place, grammar: GrammarSpan) -> tuple[float, ...]:
        """The values of a RECORD for this place and grammar, in the order of its fields."""
        aux = place.aux or 0
        values = {
            **self.fields,
            "prompt_offset": place.prompt,
            "output_offset": place.output,
            "logprobs_offset": place.output + self.max_tokens if self.entry_words else 0,
            "stop_offset": aux,
            "bias_offset": aux + self.stop_count,
            "grammar_offset": grammar.offset,
            "grammar_words": grammar.words,
        }
        return tuple(values[name] for name in RECORD.names or ())


def prepare(request: GenerateRequest, limits: SessionLimits) -> PreparedRequest:
    """Check a request and lay its data out.

    `max_tokens` is cut to what the context leaves, `min_tokens` to that; of the ring's priorities a
    request has the nearest to its own. Raises `InvalidRequest` naming the parameter.
    """
    prompt = _token_ids(request.prompt_ids, limits, "prompt")
    if len(prompt) == 0:
        raise InvalidRequest("prompt has no tokens", param="prompt")
    room = limits.context_length - len(prompt)
    if room < 1:
        raise InvalidRequest(
            f"prompt has {len(prompt)} tokens; the model's context of {limits.context_length} "
            "must also hold one generated token",
            param="prompt",
            code="context_length_exceeded",
        )
    _at_least("max_tokens", request.max_tokens, 1)
    _at_least("min_tokens", request.min_tokens, 0)
    max_tokens = min(request.max_tokens, room)
    sampling = request.sampling
    _check_sampling(sampling, limits)
    stop = _token_ids(request.stop_token_ids, limits, "stop_token_ids")
    logprobs = 0 if sampling.logprobs is None else sampling.logprobs + 1
    return PreparedRequest(
        prompt=prompt,
        aux=np.concatenate((stop, _bias(sampling.logit_bias, limits))),
        max_tokens=max_tokens,
        entry_words=_native.logprob_words(logprobs),
        top=max(logprobs - 1, 0),
        stop_count=len(stop),
        fields={
            "prompt_length": len(prompt),
            "max_tokens": max_tokens,
            "min_tokens": min(request.min_tokens, max_tokens),
            "logprobs": logprobs,
            "stop_count": len(stop),
            "bias_count": len(sampling.logit_bias),
            "priority": min(max(request.priority, 0), _native.PRIORITIES - 1),
            "flags": _native.IGNORE_EOS if request.ignore_eos and request.grammar is None else 0,
            "top_k": min(sampling.top_k, limits.vocabulary_size),
            "temperature": sampling.temperature,
            "top_p": max(sampling.top_p, _TINY),
            "min_p": sampling.min_p,
            "repetition_penalty": sampling.repetition_penalty,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "seed": sampling.seed,
        },
    )


def _check_sampling(sampling: SamplingParams, limits: SessionLimits) -> None:
    for name, holds, expected in _SAMPLING:
        value = getattr(sampling, name)
        if not holds(value):
            raise InvalidRequest(f"{name} is {value}; it must be {expected}", param=name)
    if sampling.logprobs is not None and not 0 <= sampling.logprobs <= limits.max_logprobs:
        raise InvalidRequest(
            f"logprobs is {sampling.logprobs}; this model gives 0 to {limits.max_logprobs}",
            param="logprobs",
        )


def _at_least(param: str, value: int, least: int) -> None:
    if value < least:
        raise InvalidRequest(f"{param} is {value}; it must be at least {least}", param=param)


def _token_ids(ids: Sequence[int], limits: SessionLimits, param: str) -> npt.NDArray[np.int32]:
    if len(ids) == 0:
        return np.empty(0, np.int32)
    least, most = min(ids), max(ids)
    if least < 0 or most >= limits.vocabulary_size:
        raise InvalidRequest(
            f"{param} has the token id {least if least < 0 else most}; the vocabulary is 0 to "
            f"{limits.vocabulary_size - 1}",
            param=param,
        )
    return np.array(ids, np.int32)


def _bias(bias: Mapping[int, float], limits: SessionLimits) -> npt.NDArray[np.int32]:
    pairs = np.empty((len(bias), 2), np.int32)
    if bias:
        if not all(-_HUGE <= value <= _HUGE for value in bias.values()):
            raise InvalidRequest("logit_bias has a value that is not finite", param="logit_bias")
        pairs[:, 0] = _token_ids(list(bias), limits, "logit_bias")
        pairs[:, 1] = np.array(list(bias.values()), np.float32).view(np.int32)
    return pairs.ravel()
