"""One choice's tool calls: parsed from its text, numbered, named."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from blink_server.http.tool_fields import ToolUse
from blink_server.text.tools.parser import CallDelta, ToolFormat


@dataclass(frozen=True, slots=True)
class CallPiece:
    """What became known of one call; the first piece of a call has its id and name."""

    index: int
    id: str | None
    name: str | None
    arguments: str


@dataclass(slots=True)
class WholeCall:
    """A call of a finished choice; `arguments` is JSON as the model wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(slots=True)
class WholeCalls:
    """Pieces of one choice put together again."""

    calls: list[WholeCall] = field(default_factory=list)

    def add(self, pieces: Iterable[CallPiece]) -> None:
        """Take further pieces, in their order."""
        for piece in pieces:
            if piece.id is not None:
                self.calls.append(WholeCall(piece.id, piece.name or "", ""))
            self.calls[piece.index].arguments += piece.arguments


class ToolCalls:
    """Splits a choice's text into content and calls, as `use` allows."""

    def __init__(self, use: ToolUse, tool_format: ToolFormat) -> None:
        self._use = use
        self._format = tool_format
        self._parser = tool_format.parser(use.names)
        self._begun = False
        # A call that the prompt began belongs to the answer.
        self._first: list[CallDelta] = []
        self._before = ""
        if use.required:
            self._before, self._first = self._parser.push(tool_format.opening(use.name))

    def push(self, text: str, *, last: bool) -> tuple[str, list[CallPiece]]:
        """Take more text; returns content to show and pieces of calls. `last`: it has ended."""
        content, deltas = self._parser.push(text)
        if last:
            rest, more = self._parser.finish()
            content, deltas = content + rest, [*deltas, *more]
        content, deltas = self._before + content, [*self._first, *deltas]
        self._before, self._first = "", []
        return content, self._pieces(deltas)

    def finish_reason(self, reason: str) -> str:
        """What a choice with these calls says instead of "stop".

        A call of a tool that the request named is no decision of the model's: OpenAI's API says
        "stop" there.
        """
        if self._begun and reason == "stop" and self._use.name is None:
            return "tool_calls"
        return reason

    def _pieces(self, deltas: Sequence[CallDelta]) -> list[CallPiece]:
        pieces = []
        for delta in deltas:
            if delta.index and not self._use.parallel:
                continue
            self._begun = True
            call_id = None if delta.name is None else self._format.call_id()
            pieces.append(CallPiece(delta.index, call_id, delta.name, delta.arguments))
        return pieces
