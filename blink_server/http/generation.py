"""All choices of one request: submitted, resubmitted where an endpoint closed, merged, given back.

The only retry is that of a submit an endpoint never ran (reason CLOSED, or `Unavailable` from
`submit`): it goes to the model's next endpoint, with its prompt encoded anew if that is another
version. Everything else that fails ends the request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

from blink_server.backend import FinishReason, Grammar
from blink_server.errors import BlinkError, EngineFailure, InvalidRequest, Overloaded, Unavailable
from blink_server.http.bad_words import bias_against
from blink_server.http.choice import Choice, Delta
from blink_server.http.errors import TimeExceeded
from blink_server.http.metrics import Metrics
from blink_server.http.models import Lease, ModelDirectory
from blink_server.http.openai_requests import CompletionRequest
from blink_server.http.prepare import (
    AnyRequest,
    answer_constraint,
    echoed_prompts,
    encode_prompts,
    generate_request,
    shown_special_tokens,
)
from blink_server.http.settings import ServerSettings
from blink_server.http.text_parts import TextParts
from blink_server.http.wire import Used
from blink_server.logs import current_request_id


class Generation:
    """One request's choices. `close` must be called when the request has ended, however it did."""

    def __init__(
        self,
        directory: ModelDirectory,
        request: AnyRequest,
        metrics: Metrics,
        *,
        request_id: str,
        operation: str,
        received_ns: int,
        settings: ServerSettings,
        trace_id: str = "",
    ) -> None:
        self._directory = directory
        self._request = request
        self._metrics = metrics
        self._request_id = request_id
        self._trace_id = trace_id
        self._operation = operation
        self._received_ns = received_ns
        self._settings = settings
        self._deadline: asyncio.TimerHandle | None = None
        self._expired = False
        self._closed = False
        self._cut_short: dict[int, BlinkError] = {}  # choices whose endpoint is going, by index
        self._encoded: dict[str, list[list[int]]] = {}
        self._grammars: dict[str, Grammar | None] = {}
        self._against: dict[str, Mapping[int, float]] = {}  # bias of bad words
        self._pumps: list[asyncio.Task[None]] = []
        self.choices: list[Choice] = []
        self.echoes: list[str] = []  # the text that each choice begins with

    async def start(self) -> None:
        """Encode the prompts and submit every choice.

        Raises `UnknownModel`, `Unavailable`, `Overloaded`, `InvalidRequest`; what had been
        submitted by then is given back by `close`.
        """
        request, seconds = self._request, self._settings.http.request_timeout_secs
        if seconds is not None:
            self._deadline = asyncio.get_running_loop().call_later(seconds, self._expire)
        first = await self._directory.lease_awaited(
            request.model, timeout=self._settings.awaited_seconds
        )
        version = first.entry.version
        try:
            prompts = await self._encode(first)
            echoes = echoed_prompts(request, first.entry) or [""] * len(prompts)
            self.echoes = [echo for echo in echoes for _ in range(request.n)]
            for index in range(len(prompts) * request.n):
                choice = Choice(
                    index,
                    request,
                    self._metrics,
                    operation=self._operation,
                    received_ns=self._received_ns,
                    request_id=current_request_id.get(),
                    trace_id=self._trace_id,
                )
                self.choices.append(choice)
                await self._submit(choice, first.share())
        except Overloaded:
            self._metrics.rejected(version.model, version.version)
            raise
        finally:
            first.release()

    async def _encode(self, lease: Lease) -> list[list[int]]:
        key = lease.entry.version.key
        if key not in self._encoded:
            self._encoded[key] = await encode_prompts(
                self._request, lease.entry, lease.session.limits
            )
        return self._encoded[key]

    async def _grammar(self, lease: Lease) -> Grammar | None:
        key, text = lease.entry.version.key, lease.entry.text
        assert text is not None
        if key not in self._grammars:
            self._grammars[key] = await self._compile(text)
        return self._grammars[key]

    async def _compile(self, text: TextParts) -> Grammar | None:
        constraint = answer_constraint(self._request, text)
        if constraint is None:
            return None
        shown = shown_special_tokens(self._request, text)
        try:
            return await self._directory.grammars.grammar(constraint, text.tokenizer, shown)
        except InvalidRequest:
            if not constraint.optional:
                raise
            return None

    def _bias(self, lease: Lease) -> Mapping[int, float]:
        key, text, request = lease.entry.version.key, lease.entry.text, self._request
        assert text is not None
        if key not in self._against:
            words = request.bad_words if isinstance(request, CompletionRequest) else ()
            self._against[key] = bias_against(words, text.tokenizer)
        return self._against[key]

    async def _submit(self, choice: Choice, lease: Lease) -> None:
        """Give `choice` a slot on the endpoint of `lease`, or on one that follows it."""
        while True:
            try:
                await self._submit_once(choice, lease)
                return
            except Unavailable:
                lease.release()
                lease = await self._next(lease)
            except BaseException:
                lease.release()
                raise

    async def _submit_once(self, choice: Choice, lease: Lease) -> None:
        prompt_ids = (await self._encode(lease))[choice.prompt_index]
        record = generate_request(
            self._request,
            lease.entry,
            lease.session.limits,
            prompt_ids=prompt_ids,
            number=choice.number,
            grammar=await self._grammar(lease),
            against=self._bias(lease),
            request_id=f"{self._request_id}-{choice.index}",
        )
        submitted_ns = time.monotonic_ns()
        stream = await lease.session.submit(record)
        choice.begin(lease, stream, len(prompt_ids), submitted_ns)
        lease.when_interrupted(lambda error: self._cut(choice, error))

    def _cut(self, choice: Choice, error: BlinkError) -> None:
        """The choice's endpoint is going: what it has by now is all that its client gets."""
        if not choice.ended:
            self._cut_short[choice.index] = error
            choice.stream.cancel()

    async def _next(self, lease: Lease) -> Lease:
        return await self._directory.lease_next(
            self._request.model, after=lease, timeout=self._settings.retry_seconds
        )

    def deltas(self) -> AsyncIterator[Delta]:
        """What becomes visible of any choice, until all have their finish reason.

        Raises `EngineFailure`, `Unavailable` and `TimeExceeded`; the other choices are then of no
        use. Where an endpoint has to go before its choices have ended, they end with the reason
        "length", and `Unavailable` follows.
        """
        return self._run(self.choices[0]) if len(self.choices) == 1 else self._merged()

    async def _merged(self) -> AsyncIterator[Delta]:
        queue: asyncio.Queue[Delta | Exception | None] = asyncio.Queue()
        self._pumps = [asyncio.create_task(self._pump(choice, queue)) for choice in self.choices]
        running = len(self._pumps)
        while running:
            match await queue.get():
                case None:
                    running -= 1
                case Delta() as delta:
                    yield delta
                case Exception() as error:
                    raise error
        self._raise_if_cut_short()

    async def _pump(self, choice: Choice, queue: asyncio.Queue[Delta | Exception | None]) -> None:
        try:
            async for delta in self._run(choice):
                queue.put_nowait(delta)
            queue.put_nowait(None)
        except Exception as error:
            queue.put_nowait(error)

    async def _run(self, choice: Choice) -> AsyncIterator[Delta]:
        try:
            while not choice.ended:
                async for event in choice.stream:
                    if event.reason is FinishReason.CLOSED and not choice.generated:
                        await self._submit(choice, await self._next(choice.lease))
                        break
                    if event.reason is FinishReason.CANCELLED and choice.index in self._cut_short:
                        event = replace(event, reason=FinishReason.LENGTH)
                    delta = choice.take(event)
                    if delta is not None:
                        yield delta
                    if choice.ended:
                        break
                else:
                    raise EngineFailure("the backend ended the request without a reason")
        except Exception:
            if self._expired:
                choice.end("abort")
                seconds = self._settings.http.request_timeout_secs
                raise TimeExceeded(f"the answer was not finished in {seconds:g} s") from None
            choice.end("error")
            raise
        if len(self.choices) == 1:
            self._raise_if_cut_short()

    def _raise_if_cut_short(self) -> None:
        for choice in self.choices:
            if choice.outcome == "length" and choice.index in self._cut_short:
                raise self._cut_short[choice.index]

    def _expire(self) -> None:
        """The time is up: every stream ends, and whoever reads them hears why."""
        self._expired = True
        for choice in self.choices:
            if not choice.ended:
                choice.stream.cancel()

    @property
    def used(self) -> Used:
        """Tokens so far: a prompt with several choices counts once; every generated token does."""
        return Used(
            sum(choice.prompt_tokens for choice in self.choices if choice.number == 0),
            sum(choice.generated for choice in self.choices),
        )

    def close(self) -> None:
        """Cancel and give back what has not ended; further calls do nothing."""
        if self._deadline is not None:
            self._deadline.cancel()
        for pump in self._pumps:
            pump.cancel()
        for choice in self.choices:
            choice.end("abort")
        if not self._closed and (ended := [c.finished for c in self.choices if c.finished]):
            longest = max(finished.generated_tokens for finished in ended)
            request = self._request
            self._metrics.request_ended(ended[0].model, request.n, request.max_tokens, longest)
        self._closed = True
