"""Requests without a pause, for tests of what changes under them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx

from blink_server.testing.stream_client import RequestFailed, stream_answer


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request: its answer, or how it failed."""

    text: str
    failure: str = ""


class Traffic:
    """Clients that ask one model for completions, one after the other, half of them as streams."""

    def __init__(self, url: str, model: str, *, tokens: int) -> None:
        self._url = url
        self._body: dict[str, Any] = {"model": model, "prompt": "?", "max_tokens": tokens}
        self._going = True
        self._news = asyncio.Condition()
        self._clients: list[asyncio.Task[None]] = []
        self.outcomes: list[Outcome] = []

    @classmethod
    def start(cls, url: str, model: str = "echo", *, clients: int = 4, tokens: int = 4) -> Traffic:
        """Begin; an answer has exactly `tokens` tokens."""
        traffic = cls(url, model, tokens=tokens)
        asks = [traffic._ask_streamed if n % 2 else traffic._ask_whole for n in range(clients)]
        traffic._clients = [asyncio.create_task(traffic._go_on(ask)) for ask in asks]
        return traffic

    async def until(self, text: str) -> None:
        """Wait for the next answer that is `text`. Raises TimeoutError after a minute."""
        seen = len(self.outcomes)
        async with asyncio.timeout(60), self._news:
            await self._news.wait_for(lambda: any(o.text == text for o in self.outcomes[seen:]))

    async def stop(self) -> list[Outcome]:
        """Let every client finish its request; returns all outcomes in the order of their ends."""
        self._going = False
        await asyncio.gather(*self._clients)
        return self.outcomes

    async def _go_on(self, ask: Callable[[], Awaitable[Outcome]]) -> None:
        while self._going:
            outcome = await ask()
            async with self._news:
                self.outcomes.append(outcome)
                self._news.notify_all()

    async def _ask_whole(self) -> Outcome:
        try:
            async with httpx.AsyncClient(timeout=60) as client:
                reply = await client.post(f"{self._url}/v1/completions", json=self._body)
        except httpx.HTTPError as error:
            return Outcome("", repr(error))
        if reply.status_code != 200:
            return Outcome("", f"{reply.status_code} {reply.text}")
        return Outcome(reply.json()["choices"][0]["text"])

    async def _ask_streamed(self) -> Outcome:
        try:
            answer = await stream_answer(self._url, "/v1/completions", self._body)
        except (RequestFailed, OSError) as error:
            return Outcome("", str(error))
        return Outcome(answer.text)
