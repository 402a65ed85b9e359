"""What became of one request."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field


def _no_times() -> array[float]:
    return array("d")


@dataclass(slots=True)
class Outcome:
    """One request. All times are seconds of one monotonic clock.

    `scheduled` is when it was to be sent; latencies count from there, so that a request which was
    sent late, or kept waiting for a connection, is not flattered. `texts` are the arrivals of
    events with text. `error` is the kind of what went wrong ("" where nothing did).
    """

    number: int
    scheduled: float
    asked_input: int
    asked_output: int
    sent: float = 0.0
    ended: float = 0.0
    texts: array[float] = field(default_factory=_no_times)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    finish_reason: str = ""
    error: str = ""
    detail: str = ""

    @property
    def succeeded(self) -> bool:
        return not self.error

    @property
    def time_to_first_token(self) -> float:
        """TTFT: seconds from the scheduled arrival to the first text."""
        return self.texts[0] - self.scheduled

    @property
    def end_to_end(self) -> float:
        """Seconds from the scheduled arrival to the last text."""
        return self.texts[-1] - self.scheduled

    @property
    def time_per_output_token(self) -> float | None:
        """TPOT: mean seconds a token after the first; None for answers of one token."""
        if self.completion_tokens < 2:
            return None
        return (self.texts[-1] - self.texts[0]) / (self.completion_tokens - 1)

    @property
    def inter_token_latencies(self) -> list[float]:
        """ITL: seconds between one event with text and the next."""
        return [later - sooner for sooner, later in zip(self.texts, self.texts[1:], strict=False)]

    def tokens_between(self, begin: float, end: float) -> float:
        """Tokens that arrived in [begin, end); each event with text has an equal share of them."""
        if not self.texts:
            return 0.0
        share = self.completion_tokens / len(self.texts)
        return share * sum(begin <= at < end for at in self.texts)
