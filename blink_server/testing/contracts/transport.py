"""What every frontend transport must do."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from blink_server.backend import Endpoint, ModelVersion, Session
from blink_server.errors import Unavailable
from blink_server.hookspecs import Connect
from blink_server.testing.contracts.session import SessionContract


class TransportContract(SessionContract):
    """Override `connect`, `version`, `endpoint` and `gone`."""

    @pytest.fixture
    def connect(self) -> Connect:
        """The one that is tested."""
        raise NotImplementedError("override the fixture `connect`")

    @pytest.fixture
    def version(self) -> ModelVersion:
        """What is served at `endpoint`."""
        raise NotImplementedError("override the fixture `version`")

    @pytest.fixture
    def endpoint(self) -> Endpoint:
        """Where a ring is that answers, with room for two workers at least."""
        raise NotImplementedError("override the fixture `endpoint`")

    @pytest.fixture
    def gone(self) -> Endpoint:
        """Where none is any more."""
        raise NotImplementedError("override the fixture `gone`")

    @pytest.fixture
    async def session(
        self, connect: Connect, version: ModelVersion, endpoint: Endpoint
    ) -> AsyncIterator[Session]:
        session = await connect(version, endpoint)
        yield session
        await session.close()

    async def test_what_is_gone_is_unavailable(
        self, connect: Connect, version: ModelVersion, gone: Endpoint
    ) -> None:
        with pytest.raises(Unavailable):
            await connect(version, gone)

    async def test_two_workers_share_an_endpoint(
        self, session: Session, connect: Connect, version: ModelVersion, endpoint: Endpoint
    ) -> None:
        other = await connect(version, endpoint)
        try:
            streams = [await each.submit(self.request()) for each in (session, other)]
            answers = [
                [each for event in await self.events(stream) for each in event.token_ids]
                for stream in streams
            ]
            assert answers[0] == answers[1]
        finally:
            await other.close()
        assert (await self.events(await session.submit(self.request())))[-1].reason
