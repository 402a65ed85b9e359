"""Streams one answer and notes when its text came."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from blink_server.bench.dispatch import Clock
from blink_server.bench.exchange import Exchange, Failed, Site
from blink_server.bench.outcome import Outcome
from blink_server.bench.sse import EventParser

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
_TEXT_FIELDS = ("content", "reasoning_content", "reasoning")


class AnswerReader:
    """Reads the events of one answer into an outcome; `read` is what an exchange calls."""

    def __init__(self, outcome: Outcome, clock: Clock) -> None:
        self._outcome = outcome
        self._clock = clock
        self._parser = EventParser()
        self._usage: Mapping[str, Any] = {}
        self.ended = False

    def read(self, data: bytes) -> None:
        """Note the arrival of the events in `data`. Raises Failed for an error in the stream."""
        arrived = self._clock()
        for payload in self._parser.feed(data):
            if payload == b"[DONE]":
                self.ended = True
            else:
                self._event(payload, arrived)

    def finish(self) -> None:
        """The stream is over: take the counts. Raises Failed where it is no whole answer."""
        outcome = self._outcome
        if not self.ended:
            raise Failed("broken", "the stream has no [DONE]")
        if not outcome.texts:
            raise Failed("empty", "the answer has no text")
        outcome.prompt_tokens = int(self._usage.get("prompt_tokens") or 0)
        # A server without usage in streams: an event is taken for a token.
        counted = self._usage.get("completion_tokens")
        outcome.completion_tokens = int(counted or len(outcome.texts))

    def _event(self, payload: bytes, arrived: float) -> None:
        try:
            chunk = json.loads(payload)
            if error := chunk.get("error"):
                raise Failed("stream_error", str(error)[:500])
            if usage := chunk.get("usage"):
                self._usage = usage
            for choice in chunk.get("choices", ()):
                if _has_text(choice):
                    self._outcome.texts.append(arrived)
                if reason := choice.get("finish_reason"):
                    self._outcome.finish_reason = str(reason)
        except (ValueError, TypeError, AttributeError):
            raise Failed("protocol", f"an event is no chunk: {payload[:200]!r}") from None


def _has_text(choice: Mapping[str, Any]) -> bool:
    if "text" in choice:
        return bool(choice["text"])
    delta = choice.get("delta") or {}
    return any(delta.get(name) for name in _TEXT_FIELDS) or bool(delta.get("tool_calls"))


class Client:
    """Sends requests to one route of one server."""

    def __init__(
        self,
        site: Site,
        route: str,
        fields: Mapping[str, Any],
        *,
        timeout_seconds: float,
        clock: Clock,
    ) -> None:
        """`fields` are those that every body has beside the prompt and its length."""
        self._site = site
        self._route = route
        self._fields = fields
        self._timeout = timeout_seconds
        self._clock = clock

    def body(self, prompt: str | list[int], output_tokens: int) -> dict[str, Any]:
        """A request's body: a stream with its usage, of at most `output_tokens` tokens."""
        content: dict[str, Any] = {"prompt": prompt}
        if self._route == CHAT:
            content = {"messages": [{"role": "user", "content": prompt}]}
        length: dict[str, Any] = {"max_tokens": output_tokens}
        if self._fields.get("min_tokens"):
            length["min_tokens"] = output_tokens
        options = {"stream": True, "stream_options": {"include_usage": True}}
        return {**self._fields, **content, **length, **options}

    async def send(self, outcome: Outcome, request: bytes) -> None:
        """Send a prepared request and fill its outcome; what fails is noted there."""
        reader = AnswerReader(outcome, self._clock)
        exchange = Exchange(request, reader.read)
        outcome.sent = self._clock()
        try:
            late = outcome.sent - outcome.scheduled
            async with asyncio.timeout(max(0.0, self._timeout - late)):
                await self._site.open(exchange)
                await exchange.done
            reader.finish()
        except TimeoutError:
            outcome.error = "timeout"
            outcome.detail = f"not ended {self._timeout:g} s after its scheduled arrival"
        except Failed as error:
            outcome.error, outcome.detail = error.kind, str(error)
        finally:
            outcome.ended = self._clock()
            exchange.close()

    def request(self, prompt: str | list[int], output_tokens: int) -> bytes:
        """The bytes of a request, so that nothing is left to do when it is due."""
        return self._site.request("POST", self._route, self.body(prompt, output_tokens))
