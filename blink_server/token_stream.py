"""What a backend answers with: part of the contract in `blink_server.backend`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class FinishReason(StrEnum):
    """Why a request ended. `STOP` and `LENGTH` are OpenAI's; the rest never reach a client."""

    STOP = "stop"  # an end-of-sequence id or a stop token id was generated
    LENGTH = "length"  # max_tokens or the context length was reached
    CANCELLED = "cancelled"  # the caller cancelled the stream
    CLOSED = "closed"  # the endpoint was closing and never ran it: submit again elsewhere
    ERROR = "error"  # the engine failed; the stream raises EngineFailure


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural-log probability of a generated token after penalties and bias, before temperature.

    `top` holds (token id, log-probability) of the best tokens, best first; its length is
    `SamplingParams.logprobs`.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class RequestTiming:
    """The scheduler's time stamps of one request: nanoseconds of CLOCK_MONOTONIC, 0 = never."""

    claimed_ns: int
    prefill_ns: int  # its first prefill was launched
    first_token_ns: int
    finished_ns: int


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """A request's tokens so far, as a backend counts them whose ids stand for something else."""

    prompt_tokens: int
    generated_tokens: int


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """What became visible of a request since the last event.

    The last event of a stream, and only it, has a `reason` and `timing`; it may carry tokens too.
    The token that ended a request (end-of-sequence or stop token id) is the last of `token_ids`.
    `logprobs` has one entry a token where they were asked for. `usage` is given where the ids are
    not the tokens that the client is to be told the number of.
    """

    token_ids: Sequence[int]
    logprobs: Sequence[TokenLogprob] | None = None
    reason: FinishReason | None = None
    timing: RequestTiming | None = None
    usage: TokenUsage | None = None


class TokenStream(Protocol):
    """The events of one request, for one consumer on the event loop that submitted it.

    Iteration ends after the event with a reason. It raises `EngineFailure` when the engine
    fails, and its kind `RunnerLost` when the runner is gone; no event is repeated or lost before
    that. `cancel` returns at once, may be called at any time and any number of times, and makes the
    stream end soon (with CANCELLED or with the reason that came first); a consumer that goes away
    without reading on must call it.
    """

    def __aiter__(self) -> AsyncIterator[TokenEvent]: ...

    def cancel(self) -> None: ...
