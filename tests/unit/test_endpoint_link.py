"""A worker's tie to an endpoint: what it does when the catalog says something else of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from blink_server.backend import Endpoint, ModelVersion, Session, SessionLimits
from blink_server.builtin import load_huggingface
from blink_server.config import load_model_config
from blink_server.endpoint_link import EndpointLink, Offers
from blink_server.messages import CatalogEntry
from blink_server.testing.fake_backend import FakeBackend, FakeSession
from blink_server.testing.fake_repository import write_fake_version

_SECONDS = 20


class Link:
    """An `EndpointLink` that runs, and what it has connected to."""

    def __init__(self, directory: Path, kind: type[FakeBackend], seconds: float | None) -> None:
        self.sessions: list[FakeSession] = []
        self.changes: asyncio.Queue[None] = asyncio.Queue()
        self.entry = CatalogEntry(
            model="m",
            version=1,
            epoch=1,
            state="READY",
            reason="",
            directory=str(directory),
            config=load_model_config(directory),
            aliases=(),
            backend="fake",
            endpoint=Endpoint("workers", {"content": "a"}),
        )

        def connect(version: ModelVersion, endpoint: Endpoint) -> Session:
            self.sessions.append(FakeSession(lambda _: [], SessionLimits(64, 400, (2,))))
            return self.sessions[-1]

        loaders = {"huggingface": load_huggingface}
        offers = Offers({"fake": kind(connect)}, loaders, {}, connect_seconds=seconds)
        self.link = EndpointLink(
            self.entry,
            offers,
            changed=lambda link: self.changes.put_nowait(None),
            in_use=lambda: False,
        )
        self.task = asyncio.create_task(self.link.run())

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(_SECONDS):
            while not holds():
                await self.changes.get()


Start = Callable[..., Link]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    links: list[Link] = []
    directory = write_fake_version(tmp_path)

    def start(kind: type[FakeBackend] = FakeBackend, seconds: float | None = None) -> Link:
        links.append(Link(directory, kind, seconds))
        return links[-1]

    yield start
    for each in links:
        each.task.cancel()
        await asyncio.gather(each.task, return_exceptions=True)
        await each.link.close()


async def test_the_same_endpoint_is_kept_and_configured_anew(start: Start) -> None:
    held = start()
    await held.until(lambda: held.link.session is not None)
    session, text = held.link.session, held.link.text
    config = {**held.entry.config, "source": {"changed": True}}
    held.link.update(replace(held.entry, config=config))
    assert held.link.session is session
    assert held.link.text is text
    assert held.sessions[0].config == config


async def test_another_endpoint_is_reached_and_loaded_anew(start: Start) -> None:
    held = start()
    await held.until(lambda: held.link.session is not None)
    session, text = held.link.session, held.link.text
    held.link.update(replace(held.entry, endpoint=Endpoint("workers", {"content": "b"})))
    assert held.link.session is None
    await held.until(lambda: held.link.session is not None)
    assert held.link.session is not session
    assert held.link.text is not text
    assert len(held.sessions) == 2


async def test_a_session_that_cannot_be_configured_is_logged_and_kept(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    held = start()
    await held.until(lambda: held.link.session is not None)
    monkeypatch.setattr(held.sessions[0], "configure", lambda config: 1 / 0)
    held.link.update(held.entry)
    assert held.link.session is held.sessions[0]
    assert "its session met a defect" in caplog.text


class Hanging(FakeBackend):
    async def connect(self, version: ModelVersion, endpoint: Endpoint) -> Session:
        await asyncio.Event().wait()
        raise AssertionError


async def test_a_connection_that_hangs_is_given_up(start: Start) -> None:
    held = start(Hanging, seconds=0.05)
    await held.until(lambda: bool(held.link.failure))
    assert held.link.failure == "not loaded in a worker after 0.05 s"
