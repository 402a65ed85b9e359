"""How an answer looks on the wire, whole and as a stream; each API has its own `Wire`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from blink_server.http.choice import Delta
from blink_server.http.errors import ErrorReply
from blink_server.http.tool_calls import WholeCall
from blink_server.text.choice_text import ShownLogprob


class Used(NamedTuple):
    """Tokens of a request so far: of its prompts, and generated."""

    prompt: int
    generated: int

    def openai(self) -> dict[str, int]:
        """OpenAI's usage object."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.generated,
            "total_tokens": self.prompt + self.generated,
        }


@dataclass(frozen=True, slots=True)
class FinishedChoice:
    """A whole choice; `logprobs` are empty where they were not asked for."""

    index: int
    text: str
    logprobs: list[ShownLogprob]
    finish_reason: str
    calls: list[WholeCall]
    stop_string: str | None


class Wire(Protocol):
    """One response's serializer. What it returns of a stream are whole server-sent events.

    `operation`: OpenTelemetry's name of what is done. `continuous_usage`: every event tells the
    usage so far.
    """

    id: str
    operation: str
    continuous_usage: bool

    def opening(self, echoes: Sequence[str], used: Used) -> bytes:
        """What comes before the first delta; `echoes` has the text that each choice begins with."""
        ...

    def events(self, delta: Delta, used: Used | None) -> bytes:
        """The events of one delta; `used` where `continuous_usage`."""
        ...

    def closing(self, used: Used) -> bytes:
        """What comes when every choice has its finish reason."""
        ...

    def failure(self, error: ErrorReply) -> bytes:
        """What ends a stream that cannot go on."""
        ...

    def response(self, choices: Sequence[FinishedChoice], used: Used) -> bytes:
        """The whole body of a response that is not streamed."""
        ...
