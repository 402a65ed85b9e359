"""One choice's way from generated tokens to shown text: decoding, stop strings, log-probabilities.

Tokens are taken one by one, so that the result does not depend on how they were batched into
events: the same tokens give the same text, the same count and the same end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from blink_server.backend import FinishReason, TokenEvent, TokenLogprob
from blink_server.text.detokenizer import Detokenizer
from blink_server.text.stop_strings import StopStrings
from blink_server.text.tokenizers import Tokenizer


@dataclass(frozen=True, slots=True)
class ShownLogprob:
    """A token's log-probability, with the bytes it gave to the text and where, in characters.

    `top`: bytes and log-probability of the best tokens, best first.
    """

    data: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...]
    offset: int


@dataclass(slots=True)
class _Waiting:
    """A log-probability whose text is not all shown yet.

    The token's text runs from `start`, in characters; it is shown when `end` characters are, the
    last of which it may only have begun (`unfinished` bytes of it).
    """

    shown: ShownLogprob
    text: str
    start: int
    end: int
    unfinished: int


class ChoiceText:
    """Turns the events of one sequence into deltas of text.

    `generated` counts the tokens up to the end, the ending one included; `finish_reason` is
    "stop" or "length" once the text has ended. `stopped` says that a stop string ended it, so
    that the slot is still generating and must be cancelled.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stops: Sequence[str] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
        shown_special: Collection[str] = (),
    ) -> None:
        """`shown_special`: names of special tokens that are shown all the same."""
        self._tokenizer = tokenizer
        self._decoder = Detokenizer(
            tokenizer, skip_special_tokens=skip_special_tokens, shown=shown_special
        )
        self._stops = StopStrings(stops, include=include_stop)
        self._include_stop = include_stop
        self._decoded = 0  # characters
        self._shown = 0  # characters
        self._waiting: deque[_Waiting] = deque()
        self.generated = 0
        self.finish_reason: str | None = None
        self.stopped = False

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the text."""
        return self._stops.found

    def push(self, event: TokenEvent) -> tuple[str, list[ShownLogprob]]:
        """Take one event; returns the text to show now and the log-probabilities it completes."""
        parts = []
        count = len(event.token_ids)
        # The token that ended the sequence is its end, not its text.
        hidden_last = event.reason is FinishReason.STOP and not self._include_stop
        for place, token_id in enumerate(event.token_ids):
            self.generated += 1
            if hidden_last and place == count - 1:
                break
            entry = event.logprobs[place] if event.logprobs is not None else None
            parts.append(self._token(token_id, entry))
            if self._stops.found is not None:
                self.stopped = True
                return self._show("".join(parts), "stop")
        if event.reason is None:
            return self._show("".join(parts), None)
        parts.append(self._stops.push(self._decoder.finish()))
        parts.append(self._stops.flush())
        return self._show("".join(parts), event.reason.value)

    def _token(self, token_id: int, entry: TokenLogprob | None) -> str:
        text = self._decoder.push(token_id)
        if entry is not None:
            start, pending = self._decoded, self._decoder.pending
            end = start + len(text) + (1 if pending else 0)
            top = tuple((self._tokenizer.token_bytes(best), value) for best, value in entry.top)
            data = self._decoder.token_bytes(token_id)
            shown = ShownLogprob(data, entry.logprob, top, start)
            self._waiting.append(_Waiting(shown, text, start, end, pending))
        self._decoded += len(text)
        return self._stops.push(text)

    def _show(self, text: str, finish_reason: str | None) -> tuple[str, list[ShownLogprob]]:
        self._shown += len(text)
        self.finish_reason = finish_reason
        entries = []
        while self._waiting and self._waiting[0].end <= self._shown:
            entries.append(self._waiting.popleft().shown)
        if self.stopped and self._waiting and self._waiting[0].start < self._shown:
            entries.append(self._cut(self._waiting[0]))
        return text, entries

    def _cut(self, token: _Waiting) -> ShownLogprob:
        """The part of a token that lies before the stop string it also began."""
        hidden = len(token.text[self._shown - token.start :].encode()) + token.unfinished
        data = token.shown.data
        return replace(token.shown, data=data[: len(data) - hidden])
