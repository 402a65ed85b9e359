"""What is known of a request's choice once it has ended: for metrics, traces and observers."""

from __future__ import annotations

from dataclasses import dataclass

from blink_server.backend import RequestTiming


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRequest:
    """One choice that has ended. Times are nanoseconds of CLOCK_MONOTONIC in this worker.

    `operation`: "chat" or "text_completion". `outcome`: "stop", "length", "abort" (the client went
    away) or "error". `timing`: the scheduler's time stamps, None where the end was not waited for.
    `request_id`: what the header `X-Request-Id` and log lines say.
    """

    model: str
    version: int
    operation: str
    outcome: str
    prompt_tokens: int
    generated_tokens: int
    received_ns: int
    first_token_ns: int | None
    finished_ns: int
    timing: RequestTiming | None
    submitted_ns: int = 0
    request_id: str = ""
    trace_id: str = ""

    @property
    def succeeded(self) -> bool:
        """Whether its client got a whole answer."""
        return self.outcome in ("stop", "length")

    @property
    def seconds(self) -> float:
        """From the request's arrival to its end."""
        return (self.finished_ns - self.received_ns) / 1e9

    @property
    def first_token_seconds(self) -> float | None:
        """From the request's arrival to the first token."""
        if self.first_token_ns is None:
            return None
        return (self.first_token_ns - self.received_ns) / 1e9

    @property
    def seconds_per_token(self) -> float | None:
        """Mean of the tokens after the first."""
        if self.first_token_ns is None or self.generated_tokens < 2:
            return None
        return (self.finished_ns - self.first_token_ns) / 1e9 / (self.generated_tokens - 1)
