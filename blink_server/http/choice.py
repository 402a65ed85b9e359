"""One choice of a request: its slot, its text so far, and its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from blink_server.backend import FinishReason, RequestTiming, TokenEvent, TokenStream, TokenUsage
from blink_server.errors import EngineFailure
from blink_server.finished_request import FinishedRequest
from blink_server.http.metrics import Metrics
from blink_server.http.models import Lease
from blink_server.http.openai_requests import ChatRequest
from blink_server.http.prepare import AnyRequest
from blink_server.http.tool_calls import CallPiece, ToolCalls
from blink_server.text.choice_text import ChoiceText, ShownLogprob


@dataclass(slots=True)  # not frozen: there is one for each token, and frozen ones cost twice
class Delta:
    """What became visible of one choice; the last of a choice has its finish reason."""

    index: int
    text: str
    logprobs: list[ShownLogprob]
    finish_reason: str | None
    calls: Sequence[CallPiece] = ()
    stop_string: str | None = None


class Choice:
    """The choice `index` of a request, submitted on the endpoint that `lease` holds.

    It owns stream and lease: `end` gives both back, once, and counts the outcome.
    """

    def __init__(
        self,
        index: int,
        request: AnyRequest,
        metrics: Metrics,
        *,
        operation: str,
        received_ns: int,
        request_id: str = "",
        trace_id: str = "",
    ) -> None:
        self.index = index
        self.prompt_index, self.number = divmod(index, request.n)
        self.prompt_tokens = 0
        self.outcome: str | None = None
        self.finished: FinishedRequest | None = None
        self._request = request
        self._metrics = metrics
        self._operation = operation
        self._received_ns = received_ns
        self._request_id = request_id
        self._trace_id = trace_id
        self._submitted_ns = 0
        self._first_token_ns: int | None = None
        self._last_token_ns = 0
        self._tokens_after: Callable[[float], None] | None = None
        self._text: ChoiceText | None = None
        self._calls: ToolCalls | None = None
        self._stream: TokenStream | None = None
        self._usage: TokenUsage | None = None  # the backend's own, if it counts itself
        self._lease: Lease | None = None

    @property
    def generated(self) -> int:
        """Tokens generated so far, the ending one included."""
        if self._usage is not None:
            return self._usage.generated_tokens
        return 0 if self._text is None else self._text.generated

    @property
    def ended(self) -> bool:
        return self._lease is None

    @property
    def lease(self) -> Lease:
        """The endpoint it is on. It has one from `begin` to `end`."""
        assert self._lease is not None
        return self._lease

    @property
    def stream(self) -> TokenStream:
        """Its events, from the last `begin` on."""
        assert self._stream is not None
        return self._stream

    def begin(
        self, lease: Lease, stream: TokenStream, prompt_tokens: int, submitted_ns: int
    ) -> None:
        """It has its slot, for the first time or again after an endpoint that never ran it."""
        request, text = self._request, lease.entry.text
        assert text is not None
        if self._lease is None:
            self._metrics.submitted(lease.entry.version.model)
        else:
            self._lease.release()
        self._lease, self._stream, self.prompt_tokens = lease, stream, prompt_tokens
        self._submitted_ns = submitted_ns
        use = request.tool_use if isinstance(request, ChatRequest) else None
        tool_format = None if use is None else text.tool_format
        self._calls = None if use is None or tool_format is None else ToolCalls(use, tool_format)
        self._text = ChoiceText(
            text.tokenizer,
            stops=request.stop,
            include_stop=request.include_stop,
            skip_special_tokens=request.skip_special_tokens,
            shown_special=() if tool_format is None else tool_format.special_tokens,
        )

    def take(self, event: TokenEvent) -> Delta | None:
        """The delta that `event` gives, None where nothing became visible.

        Raises `EngineFailure` where the event ends the choice in a way that has no finish reason.
        """
        assert self._text is not None
        if event.reason in (FinishReason.ERROR, FinishReason.CANCELLED, FinishReason.CLOSED):
            raise EngineFailure(f"the request was ended by its backend ({event.reason})")
        count = len(event.token_ids)
        if event.usage is not None:
            count = event.usage.generated_tokens - self.generated
            self._usage, self.prompt_tokens = event.usage, event.usage.prompt_tokens
        if count > 0:
            self._observe_tokens(count)
        text, logprobs = self._text.push(event)
        finish_reason = self._text.finish_reason
        if finish_reason is not None:
            if self._text.stopped:
                self.stream.cancel()
            self.end(finish_reason, event.timing)
        calls: Sequence[CallPiece] = ()
        if self._calls is not None:
            text, calls = self._calls.push(text, last=finish_reason is not None)
            if finish_reason is not None:
                finish_reason = self._calls.finish_reason(finish_reason)
        if finish_reason is None and not text and not logprobs and not calls:
            return None
        return Delta(self.index, text, logprobs, finish_reason, calls, self._text.stop_string)

    def end(self, outcome: str, timing: RequestTiming | None = None) -> None:
        """Give endpoint and slot back; further calls do nothing.

        `outcome`: see `FinishedRequest`. A choice that ended of itself needs no cancel.
        """
        lease, self._lease = self._lease, None
        if lease is None:
            return
        self.outcome = outcome
        try:
            if outcome not in ("stop", "length"):
                self.stream.cancel()
        finally:
            lease.release()
        version = lease.entry.version
        self.finished = FinishedRequest(
            model=version.model,
            version=version.version,
            operation=self._operation,
            outcome=outcome,
            prompt_tokens=self.prompt_tokens,
            generated_tokens=self.generated,
            received_ns=self._received_ns,
            first_token_ns=self._first_token_ns,
            finished_ns=time.monotonic_ns(),
            timing=timing,
            request_id=self._request_id,
            submitted_ns=self._submitted_ns,
            trace_id=self._trace_id,
        )
        self._metrics.observe_finished(self.finished)

    def _observe_tokens(self, count: int) -> None:
        now = time.monotonic_ns()
        if self._tokens_after is None:
            model = self.lease.entry.version.model
            self._first_token_ns = now
            self._metrics.first_token(model)
            self._tokens_after = self._metrics.tokens_after(model)
        else:
            self._tokens_after((now - self._last_token_ns) / count / 1e9)
        self._last_token_ns = now
