"""How the end of a ring's request appears to its caller."""

from __future__ import annotations

from blink_persistent.ring import Reason
from blink_server.backend import FinishReason
from blink_server.errors import EngineFailure

_FINISH = {
    Reason.END_OF_SEQUENCE: FinishReason.STOP,
    Reason.STOP_TOKEN: FinishReason.STOP,
    Reason.MAX_TOKENS: FinishReason.LENGTH,
    Reason.CONTEXT_LIMIT: FinishReason.LENGTH,
    Reason.CANCELLED: FinishReason.CANCELLED,
    Reason.CLOSED: FinishReason.CLOSED,
}
_FAILURES = {
    Reason.INVALID_RECORD: "the scheduler found its record out of bounds",
    Reason.KV_EXHAUSTED: "alone, it needs more KV memory than the model has",
    Reason.BAD_TOKEN: "the model gave logits that are not finite, or an unknown token",
    Reason.ENGINE_ERROR: "the engine's step failed",
}


def ending(reason: Reason, request_id: str) -> FinishReason | EngineFailure:
    """What a stream ends with, or the error that it raises."""
    if reason in _FAILURES:
        return EngineFailure(
            f"request {request_id!r} ended with {reason.name}: {_FAILURES[reason]}"
        )
    return _FINISH[reason]
