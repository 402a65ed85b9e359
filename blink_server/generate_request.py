"""What a request asks of a backend: part of the contract in `blink_server.backend`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How a token is chosen from the logits; every field acts inside the step.

    temperature: >= 0; 0 is greedy. top_p: (0, 1]. top_k: 0 is off. min_p: [0, 1).
    repetition_penalty: > 0, 1 is off (over prompt and generated tokens, as in CTRL, arXiv
    1909.05858); presence_penalty, frequency_penalty: [-2, 2], 0 is off (generated tokens only).
    seed: 64 bits; the random number of a token depends on (seed, position) alone.
    logprobs: None is off, 0 the chosen token's, n <= 20 also the n best.
    logit_bias: token id -> added to its logit.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    logprobs: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class TokenBytes:
    """What every token of a vocabulary adds to a text.

    data: uint8 [bytes]; offsets: uint64 [vocabulary_size + 1]: token i is
    data[offsets[i] : offsets[i + 1]]. A token without bytes is never part
    of a constrained text. One object for all grammars of a tokenizer. digest: of its contents.
    """

    data: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.uint64]
    digest: str


@dataclass(frozen=True, slots=True, eq=False)
class Grammar:
    """The texts that an answer may be: an automaton over their bytes, whose state 0 is the first.

    class_of: uint8 [256], bytes that are alike; next: int32 [states, classes], -1 where the byte is
    refused; accepting: uint8 [states], 1 where a text may end. Every state leads to one of those.
    digest: equal for equal automata over equal tokens. param: the request's field that asks for it.
    """

    class_of: npt.NDArray[np.uint8]
    next: npt.NDArray[np.int32]
    accepting: npt.NDArray[np.uint8]
    digest: str
    tokens: TokenBytes
    param: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """One sequence to generate: the validated record that becomes one slot.

    `prompt_ids` is not empty and, with one generated token, fits the context. `stop_token_ids`
    end the request like an end-of-sequence id does; `ignore_eos` turns only the model's own
    end-of-sequence ids off. `priority`: any whole number, smaller ones are served first; a backend
    with fewer levels takes the nearest, and counts them from 0. With a `grammar` the answer is the
    beginning of one of its texts, and a whole one where it ends with an end-of-sequence id; that is
    held inside the step, and `min_tokens` and `ignore_eos` give way. A backend that cannot hold it
    refuses the request.
    """

    prompt_ids: Sequence[int]
    max_tokens: int
    min_tokens: int = 0
    sampling: SamplingParams = SamplingParams()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    priority: int = 0
    grammar: Grammar | None = None
    request_id: str = ""
