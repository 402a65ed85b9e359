"""A request to the scripted engine, and the answer it must get, computed without a scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from blink_persistent import _native
from blink_persistent.ring import Reason
from blink_persistent.testing.scripted_shape import ScriptedShape


class Answer(NamedTuple):
    """How an undisturbed request ends: its tokens and why it stopped."""

    tokens: tuple[int, ...]
    reason: Reason


@dataclass(frozen=True, slots=True)
class ScriptedRequest:
    """What a frontend asks for. `overrides` replaces fields of the record as it is written, to
    make requests that the scheduler must refuse."""

    prompt: tuple[int, ...]
    max_tokens: int = 8
    min_tokens: int = 0
    stop: tuple[int, ...] = ()
    ignore_eos: bool = False
    priority: int = 0
    logprobs: int = 0
    overrides: Mapping[str, int | float] = field(default_factory=dict)

    def record_fields(self) -> dict[str, int | float]:
        """Fields of the ring's record, but for the offsets, which depend on the slot."""
        return {
            "prompt_length": len(self.prompt),
            "max_tokens": self.max_tokens,
            "min_tokens": self.min_tokens,
            "stop_count": len(self.stop),
            "priority": self.priority,
            "logprobs": self.logprobs,
            "flags": _native.IGNORE_EOS if self.ignore_eos else 0,
            "bias_offset": 0,
            "bias_count": 0,
            "top_k": 0,
            "temperature": 0.0,
            "top_p": 1.0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "seed": 0,
            "grammar_offset": 0,
            "grammar_words": 0,
        }

    def answer(self, shape: ScriptedShape) -> Answer:
        """The answer by the plain rule: what no batching, pausing or moving may change."""
        pool = (shape.block_count - 1) * shape.block_size if shape.rows_movable else 1 << 32
        if self.overrides or not 0 < len(self.prompt) < shape.context_length:
            return Answer((), Reason.INVALID_RECORD)
        if len(self.prompt) > pool:
            return Answer((), Reason.KV_EXHAUSTED)
        if any(not 0 <= token < shape.vocabulary_size for token in self.prompt):
            return Answer((), Reason.INVALID_RECORD)
        script = _native.scripted_continuation(
            shape.rule, list(self.prompt), self.max_tokens, self.min_tokens, shape.tells_phases
        )
        tokens: list[int] = []
        for token in script:
            if len(self.prompt) + len(tokens) > pool:
                return Answer(tuple(tokens), Reason.KV_EXHAUSTED)
            if (tokens or self.prompt)[-1] == shape.poison_token:
                return Answer(tuple(tokens), Reason.BAD_TOKEN)
            tokens.append(token)
            reason = self._end(shape, token, len(tokens))
            if reason != Reason.NONE:
                return Answer(tuple(tokens), reason)
        raise ValueError("max_tokens must be positive")

    def _end(self, shape: ScriptedShape, token: int, generated: int) -> Reason:
        if generated >= self.min_tokens:
            if token == shape.eos_token_id and not self.ignore_eos:
                return Reason.END_OF_SEQUENCE
            if token in self.stop:
                return Reason.STOP_TOKEN
        if generated >= self.max_tokens:
            return Reason.MAX_TOKENS
        full = len(self.prompt) + generated >= shape.context_length
        return Reason.CONTEXT_LIMIT if full else Reason.NONE
