"""What every session must do, however a worker has got it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from blink_server.backend import (
    FinishReason,
    GenerateRequest,
    SamplingParams,
    Session,
    TokenEvent,
    TokenStream,
)
from blink_server.errors import Unavailable

_SECONDS = 30  # far beyond what anything small takes


class SessionContract:
    """Override `session`; `prompt_ids` where the model cannot take these."""

    prompt_ids: Sequence[int] = (5, 6, 7, 8)

    @pytest.fixture
    def session(self) -> Session:
        """A fresh one; closed by whoever overrides this."""
        raise NotImplementedError("override the fixture `session`")

    def request(self, max_tokens: int = 3, **fields: Any) -> GenerateRequest:
        """One that a small model answers at once."""
        greedy = SamplingParams(temperature=0.0)
        return GenerateRequest(
            prompt_ids=list(self.prompt_ids), max_tokens=max_tokens, sampling=greedy, **fields
        )

    async def events(self, stream: TokenStream) -> list[TokenEvent]:
        """All events of a stream, which must end."""
        async with asyncio.timeout(_SECONDS):
            return [event async for event in stream]

    async def until_idle(self, session: Session) -> None:
        """Return when every request has been given back; nothing tells of that."""
        async with asyncio.timeout(_SECONDS):
            while session.in_flight:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def test_a_stream_ends_with_its_only_reason(self, session: Session) -> None:
        events = await self.events(await session.submit(self.request()))
        assert [event.reason is None for event in events] == [True] * (len(events) - 1) + [False]
        assert events[-1].reason in (FinishReason.STOP, FinishReason.LENGTH)
        timing = events[-1].timing
        assert timing is not None
        assert 0 < timing.claimed_ns <= timing.first_token_ns <= timing.finished_ns

    async def test_no_more_tokens_come_than_were_asked_for(self, session: Session) -> None:
        for count in (1, 2, 3):
            asked = self.request(count, ignore_eos=True)
            events = await self.events(await session.submit(asked))
            tokens = [each for event in events for each in event.token_ids]
            if events[0].usage is None:
                assert 0 < len(tokens) <= count
            assert all(0 <= each < session.limits.vocabulary_size for each in tokens)

    async def test_requests_do_not_disturb_one_another(self, session: Session) -> None:
        def tokens(events: list[TokenEvent]) -> list[int]:
            return [each for event in events for each in event.token_ids]

        alone = tokens(await self.events(await session.submit(self.request())))
        streams = [await session.submit(self.request()) for _ in range(4)]
        together = await asyncio.gather(*map(self.events, streams))
        assert [tokens(events) for events in together] == [alone] * 4

    async def test_everything_is_given_back(self, session: Session) -> None:
        streams = [await session.submit(self.request()) for _ in range(3)]
        assert session.in_flight == 3
        for stream in streams:
            await self.events(stream)
        await self.until_idle(session)

    async def test_a_cancelled_stream_ends_soon(self, session: Session) -> None:
        room = session.limits.context_length - len(self.prompt_ids)
        stream = await session.submit(self.request(room, ignore_eos=True))
        stream.cancel()
        stream.cancel()
        events = await self.events(stream)
        assert events[-1].reason is not None
        await self.until_idle(session)
        assert (await self.events(await session.submit(self.request())))[-1].reason

    async def test_an_abandoned_stream_is_given_back(self, session: Session) -> None:
        room = session.limits.context_length - len(self.prompt_ids)
        stream = await session.submit(self.request(room, ignore_eos=True))
        async for _ in stream:
            break
        stream.cancel()
        await self.until_idle(session)

    async def test_a_closed_session_takes_nothing(self, session: Session) -> None:
        room = session.limits.context_length - len(self.prompt_ids)
        stream = await session.submit(self.request(room, ignore_eos=True))
        async with asyncio.timeout(_SECONDS):
            await session.close()
        assert session.in_flight == 0
        stream.cancel()
        with pytest.raises(Unavailable):
            await session.submit(self.request())

    async def test_limits_and_statistics_make_sense(self, session: Session) -> None:
        assert session.limits.context_length > len(self.prompt_ids)
        assert session.limits.vocabulary_size > max(self.prompt_ids)
        assert session.in_flight == 0
        stats = session.stats()
        assert stats is None or 0 <= stats.rows_used <= stats.rows
