from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blink_server.backend import Endpoint, ModelVersion, SessionLimits
from blink_server.builtin import load_huggingface
from blink_server.catalog_follower import CatalogFollower
from blink_server.config import load_model_config
from blink_server.control_server import ControlServer, Peer
from blink_server.endpoint_link import Offers
from blink_server.errors import Unavailable
from blink_server.http.model_entry import ModelEntry
from blink_server.http.models import ModelDirectory
from blink_server.messages import (
    FROM_WORKER,
    CatalogEntry,
    CatalogUpdate,
    Connected,
    CountUsage,
    EndpointKey,
    EndpointUsage,
    Message,
    RegisterRunner,
    RegisterWorker,
    Released,
    Usage,
)
from blink_server.testing.fake_backend import FakeSession
from blink_server.testing.fake_repository import write_fake_version
from blink_server.testing.fake_runner_backend import FakeRunnerBackend


class Backend(FakeRunnerBackend):
    """Connects to sessions in this process; refuses while `refusal` says why."""

    def __init__(self) -> None:
        super().__init__()
        self.sessions: list[ClosableSession] = []
        self.refusal = ""
        self.refused = asyncio.Event()

    async def connect(self, version: ModelVersion, endpoint: Endpoint) -> ClosableSession:
        if self.refusal:
            self.refused.set()
            raise Unavailable(self.refusal)
        self.sessions.append(ClosableSession())
        return self.sessions[-1]


class ClosableSession(FakeSession):
    def __init__(self) -> None:
        super().__init__(lambda _: [], SessionLimits(64, 400, (2,)))
        self.closed = asyncio.Event()

    async def close(self) -> None:
        self.closed.set()


class Provisioner:
    """Sends what it is told to, and notes what the worker says."""

    def __init__(self, path: Path) -> None:
        self.said: asyncio.Queue[Message] = asyncio.Queue()
        self.peers: asyncio.Queue[Peer] = asyncio.Queue()
        self.server = ControlServer(path, on_runner=self.no_runner, on_worker=self.worker)
        self.revision = 0

    async def no_runner(self, peer: Peer, registration: RegisterRunner) -> None:
        raise AssertionError("no runner connects here")

    async def worker(self, peer: Peer, registration: RegisterWorker) -> None:
        self.said.put_nowait(registration)
        self.peers.put_nowait(peer)
        async for message in peer.messages(FROM_WORKER):
            self.said.put_nowait(message)

    async def hear(self) -> Message:
        return await asyncio.wait_for(self.said.get(), 10)

    async def publish(self, peer: Peer, *entries: CatalogEntry, server: Any = "READY") -> None:
        self.revision += 1
        await peer.send(CatalogUpdate(self.revision, server, entries))


class WatchedDirectory(ModelDirectory):
    """A directory whose every publication can be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.published: asyncio.Queue[Mapping[str, ModelEntry]] = asyncio.Queue()

    def publish(self, entries: Any, **server: Any) -> None:
        super().publish(entries, **server)
        self.published.put_nowait({entry.version.key: entry for entry in self.entries})

    async def until(self, wanted: Callable[[ModelEntry], bool], key: str = "echo:1") -> ModelEntry:
        async with asyncio.timeout(10):
            while True:
                entries = await self.published.get()
                if key in entries and wanted(entries[key]):
                    return entries[key]


class Worker:
    """A follower at work, with its backend, directory and provisioner."""

    def __init__(self, path: Path) -> None:
        self.socket = path / "control.sock"
        self.provisioner = Provisioner(self.socket)
        self.backend = Backend()
        self.directory = WatchedDirectory()
        self.follower = CatalogFollower(
            self.socket,
            self.directory,
            Offers({"fake": self.backend}, {"huggingface": load_huggingface}, {}),
        )
        version = write_fake_version(path / "repository")
        self.ready = CatalogEntry(
            model="echo",
            version=1,
            epoch=1,
            state="READY",
            reason="",
            directory=str(version),
            config=load_model_config(version),
            aliases=("alias",),
            backend="fake",
            endpoint=Endpoint("fake", {}),
        )
        self.gone = replace(self.ready, state="UNAVAILABLE", reason="it died", endpoint=None)
        self.task: asyncio.Task[None]

    async def start(self) -> Peer:
        await self.provisioner.server.start()
        self.task = asyncio.create_task(self.follower.run())
        assert await self.provisioner.hear() == RegisterWorker(os.getpid())
        return await self.provisioner.peers.get()

    async def serving(self) -> Peer:
        peer = await self.start()
        await self.provisioner.publish(peer, self.ready)
        await self.directory.until(lambda entry: entry.serves)
        assert await self.provisioner.hear() == Connected("echo", 1, 1)
        return peer


@pytest.fixture
async def worker(short_path: Path) -> AsyncIterator[Worker]:
    worker = Worker(short_path)
    yield worker
    worker.task.cancel()
    await worker.follower.close()
    await worker.provisioner.server.close()


async def test_a_ready_version_is_connected_and_published_with_its_text(worker: Worker) -> None:
    peer = await worker.serving()
    entry = worker.directory.find("alias")
    assert entry.session is worker.backend.sessions[0]
    assert entry.text is not None
    assert entry.text.chat_template is not None
    await worker.provisioner.publish(peer, worker.ready, server="DRAINING")
    await worker.directory.until(lambda _: worker.directory.server == "DRAINING")
    with pytest.raises(Unavailable, match="shutting down"):
        worker.directory.lease("echo")
    assert len(worker.backend.sessions) == 1


async def test_caught_up_is_when_every_endpoint_has_been_tried(worker: Worker) -> None:
    peer = await worker.start()
    caught_up = asyncio.ensure_future(worker.follower.caught_up())
    lost = replace(worker.ready, model="lost", backend="strange", aliases=())
    await worker.provisioner.publish(peer, worker.ready, lost)
    await asyncio.wait_for(caught_up, 10)
    assert worker.directory.find("echo").serves
    assert worker.directory.find("lost").reason


async def test_without_a_catalog_nothing_is_caught_up(worker: Worker) -> None:
    peer = await worker.start()
    caught_up = asyncio.ensure_future(worker.follower.caught_up())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not caught_up.done()
    await worker.provisioner.publish(peer)
    await asyncio.wait_for(caught_up, 10)


async def test_a_retired_endpoint_is_kept_for_its_requests_then_closed_and_released(
    worker: Worker,
) -> None:
    peer = await worker.serving()
    lease = worker.directory.lease("echo")
    renewed = replace(worker.ready, epoch=2)
    await worker.provisioner.publish(peer, renewed)
    await worker.directory.until(lambda entry: entry.serves and entry.epoch == 2)
    assert await worker.provisioner.hear() == Connected("echo", 1, 2)
    old, new = worker.backend.sessions
    assert not old.closed.is_set()
    lease.release()
    assert await worker.provisioner.hear() == Released("echo", 1, 1)
    assert old.closed.is_set()
    assert not new.closed.is_set()


async def test_an_endpoint_that_nobody_holds_is_released_at_once(worker: Worker) -> None:
    peer = await worker.serving()
    await worker.provisioner.publish(peer, worker.gone)
    assert await worker.provisioner.hear() == Released("echo", 1, 1)
    with pytest.raises(Unavailable, match="unavailable: it died"):
        worker.directory.lease("echo")


async def test_an_endpoint_that_was_never_reached_is_released_too(worker: Worker) -> None:
    worker.backend.refusal = "no such socket"
    peer = await worker.start()
    await worker.provisioner.publish(peer, worker.ready)
    entry = await worker.directory.until(lambda entry: bool(entry.reason))
    assert (entry.state, entry.reason) == ("UNAVAILABLE", "no such socket")
    await worker.provisioner.publish(peer, worker.gone)
    assert await worker.provisioner.hear() == Released("echo", 1, 1)


async def test_connecting_is_tried_again_and_a_failure_told_once(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    worker.backend.refusal = "no such socket"
    peer = await worker.start()
    await worker.provisioner.publish(peer, worker.ready)
    for _ in range(3):
        await asyncio.wait_for(worker.backend.refused.wait(), 10)
        worker.backend.refused.clear()
    assert caplog.text.count("no such socket") == 1
    worker.backend.refusal = ""
    assert await worker.provisioner.hear() == Connected("echo", 1, 1)
    assert worker.directory.find("echo").serves


async def test_a_lost_session_is_told_at_once_and_closed_after_its_requests(
    worker: Worker,
) -> None:
    await worker.serving()
    lease = worker.directory.lease("echo")
    (session,) = worker.backend.sessions
    worker.backend.refusal = "connection refused"
    session.shut("the runner is gone")
    with pytest.raises(Unavailable, match="the runner is gone"):
        worker.directory.lease("echo")
    for _ in range(20):  # turns of the loop in which it must not be closed
        await asyncio.sleep(0)
    assert not session.closed.is_set()
    lease.release()
    await asyncio.wait_for(session.closed.wait(), 10)
    await worker.backend.refused.wait()
    worker.backend.refusal = ""
    assert await worker.provisioner.hear() == Connected("echo", 1, 1)
    assert worker.directory.find("echo").session is worker.backend.sessions[1]


async def test_without_a_provisioner_the_last_catalog_holds_and_the_next_is_told_what_is_held(
    worker: Worker,
) -> None:
    await worker.serving()
    await worker.provisioner.server.close()
    worker.directory.lease("echo").release()
    successor = Provisioner(worker.socket)
    await successor.server.start()
    held = (EndpointKey("echo", 1, 1),)
    assert await successor.hear() == RegisterWorker(os.getpid(), held)
    peer = await successor.peers.get()
    await successor.publish(peer, worker.ready)
    await worker.directory.until(lambda entry: entry.serves)
    assert len(worker.backend.sessions) == 1
    await successor.publish(peer)
    assert await successor.hear() == Released("echo", 1, 1)
    await successor.server.close()


async def test_a_version_whose_tokenizer_is_broken_says_so_and_others_serve(
    worker: Worker, short_path: Path
) -> None:
    other = write_fake_version(short_path / "repository", "other")
    (other / "tokenizer.json").write_text("{}")
    broken = replace(worker.ready, model="other", directory=str(other), aliases=())
    peer = await worker.start()
    await worker.provisioner.publish(peer, broken, worker.ready)
    assert await worker.provisioner.hear() == Connected("echo", 1, 1)
    entry = await worker.directory.until(lambda entry: bool(entry.reason), "other:1")
    assert "tokenizer.json: is not a tokenizer" in entry.reason


async def test_a_backend_that_this_worker_lacks_is_named(worker: Worker) -> None:
    peer = await worker.start()
    await worker.provisioner.publish(peer, replace(worker.ready, backend="strange"))
    entry = await worker.directory.until(lambda entry: bool(entry.reason))
    assert entry.reason == "no plugin of this worker brings the backend 'strange'"


async def test_close_gives_every_session_back(worker: Worker) -> None:
    await worker.serving()
    await worker.follower.close()
    assert worker.backend.sessions[0].closed.is_set()


async def test_a_request_gets_the_new_endpoint_when_this_worker_is_connected_to_it(
    worker: Worker,
) -> None:
    peer = await worker.serving()
    old = worker.backend.sessions[0]
    worker.backend.refusal = "not yet"
    new = replace(worker.ready, epoch=2)
    await worker.provisioner.publish(peer, worker.ready, new)
    await asyncio.wait_for(worker.backend.refused.wait(), 10)
    assert worker.directory.find("echo").session is old
    worker.backend.refusal = ""
    assert await worker.provisioner.hear() == Connected("echo", 1, 2)
    assert worker.directory.find("echo").session is worker.backend.sessions[1]
    # An endpoint that was picked is held, whether its request has been submitted or not.
    picked = worker.directory.lease("echo")
    await worker.provisioner.publish(peer, new)
    assert await worker.provisioner.hear() == Released("echo", 1, 1)
    gone = replace(new, state="DRAINING", endpoint=None)
    await worker.provisioner.publish(peer, gone)
    await worker.directory.until(lambda entry: not entry.serves)
    assert worker.provisioner.said.empty()
    picked.release()
    assert await worker.provisioner.hear() == Released("echo", 1, 2)


async def test_settings_reach_the_session_when_it_connects_and_whenever_they_change(
    worker: Worker,
) -> None:
    peer = await worker.serving()
    [session] = worker.backend.sessions
    assert session.config == worker.ready.config
    config = {**worker.ready.config, "default_sampling": {"top_k": 7}}
    await worker.provisioner.publish(peer, replace(worker.ready, config=config))
    await worker.directory.until(lambda e: e.version.config["default_sampling"] != {})
    assert session.config == config
    assert len(worker.backend.sessions) == 1


async def test_a_worker_counts_its_requests_when_it_is_asked(worker: Worker) -> None:
    peer = await worker.serving()
    await peer.send(CountUsage(1))
    assert await worker.provisioner.hear() == Usage(1, ())
    with worker.directory.lease("echo"), worker.directory.lease("alias"):
        await peer.send(CountUsage(2))
        assert await worker.provisioner.hear() == Usage(2, (EndpointUsage(worker.ready.key, 2),))


@pytest.mark.parametrize("ending", [False, True])
async def test_requests_are_ended_when_their_runner_or_the_server_is(
    worker: Worker, ending: bool
) -> None:
    peer = await worker.serving()
    heard: asyncio.Queue[str] = asyncio.Queue()
    lease = worker.directory.lease("echo")
    lease.when_interrupted(lambda error: heard.put_nowait(str(error)))
    unloading = replace(worker.ready, state="UNLOADING", endpoint=None)
    entry = worker.ready if ending else unloading
    await peer.send(CatalogUpdate(99, "DRAINING", (entry,), ending=ending))
    expected = "the server has shut down" if ending else "echo:1 was unloaded"
    assert await asyncio.wait_for(heard.get(), 10) == expected
    lease.when_interrupted(lambda error: heard.put_nowait("again"))
    assert heard.get_nowait() == "again"
    lease.release()
