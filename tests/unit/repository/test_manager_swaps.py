"""One generation of a version after another, and versions that share too little memory."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from blink_server.message_codec import MAX_LINE, decode, encode
from blink_server.messages import (
    TO_WORKER,
    CatalogUpdate,
    Connected,
    EndpointKey,
    Message,
    RegisterWorker,
    Released,
)
from blink_server.repository.policy import VersionKey
from blink_server.repository.wanted import InvalidVersion
from blink_server.testing.manager_rig import FAST, MIB, Rig

PATIENT = replace(FAST, first_retry=600.0, longest_retry=600.0)


@pytest.fixture
async def rig(short_path: Path) -> AsyncIterator[Rig]:
    rig = await Rig.start(short_path)
    yield rig
    await rig.close()


class Worker:
    """A worker's end of the control channel, that says what it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, rig: Rig) -> Worker:
        path = str(rig.runtime.control_socket)
        worker = cls(*await asyncio.open_unix_connection(path, limit=MAX_LINE))
        worker.say(RegisterWorker(os.getpid()))
        return worker

    def say(self, message: Message) -> None:
        self.writer.write(encode(message))

    async def offered(self, epochs: set[int]) -> None:
        """Wait for a catalog with the endpoints of exactly these epochs."""
        async with asyncio.timeout(30):
            while True:
                update = decode(await self.reader.readline(), TO_WORKER)
                assert isinstance(update, CatalogUpdate)
                if {e.epoch for e in update.models if e.endpoint is not None} == epochs:
                    return


async def test_changed_files_are_loaded_beside_what_serves(rig: Rig) -> None:
    old = replace(rig.wanted(), content="a")
    await rig.apply(old)
    await rig.catalog.entry("READY")
    new = replace(old, content="b")
    await rig.want(new)
    update = await rig.catalog.until(lambda u: u.models[-1].epoch == 2)
    assert [(e.epoch, e.state) for e in update.models] == [(1, "READY"), (2, "LOADING")]
    assert update.server == "READY"
    await rig.catalog.entry("READY", epoch=2)
    await rig.catalog.until(lambda u: [e.epoch for e in u.models] == [2])
    assert not (rig.runtime.path / "runner-1").exists()


async def test_the_old_one_goes_when_every_worker_is_connected_and_has_let_go(rig: Rig) -> None:
    old = replace(rig.wanted(), content="a")
    await rig.apply(old)
    workers = [await Worker.connect(rig) for _ in range(2)]
    for worker in workers:
        await worker.offered({1})
        worker.say(Connected("echo", 1, 1))
    await rig.want(replace(old, content="b"))
    for worker in workers:
        await worker.offered({1, 2})
    workers[0].say(Connected("echo", 1, 2))
    new = EndpointKey("echo", 1, 2)
    await rig.catalog.until(
        lambda _: [new in c for c in rig.catalog._connected.values()] == [True, False]
    )
    assert {e.state for e in rig.catalog.current.models} == {"READY"}  # type: ignore[union-attr]
    workers[1].say(Connected("echo", 1, 2))
    for worker in workers:
        await worker.offered({2})
    workers[0].say(Released("echo", 1, 1))
    await rig.catalog.entry("DRAINING")
    assert rig.runner(1).alive
    workers[1].say(Released("echo", 1, 1))
    await rig.catalog.until(lambda u: [e.epoch for e in u.models] == [2])
    for worker in workers:
        worker.writer.close()


async def test_a_load_that_fails_leaves_the_old_one_serving_until_it_is_mended(rig: Rig) -> None:
    old = replace(rig.wanted(), content="a")
    await rig.apply(old)
    await rig.catalog.entry("READY")
    fake = old.version.directory / "fake.json"
    fake.write_text('{"exit_code": 5}')
    await rig.want(replace(old, content="b"))
    failed = await rig.catalog.until(lambda u: any("exit code 5" in e.reason for e in u.models))
    assert failed.models[0].endpoint is not None
    fake.write_text("{}")
    await rig.want(replace(old, content="c"))
    update = await rig.catalog.until(lambda u: [e.state for e in u.models] == ["READY"])
    assert update.models[0].epoch > 2


async def test_files_that_cannot_be_loaded_at_all_leave_the_old_one_serving(rig: Rig) -> None:
    old = rig.wanted()
    await rig.apply(old)
    await rig.catalog.entry("READY")
    broken = InvalidVersion(VersionKey("echo", 1), old.version.directory, "config.json: is empty")
    await rig.want(invalid=[broken])
    update = await rig.catalog.until(lambda u: len(u.models) == 2)
    assert [e.state for e in update.models] == ["UNAVAILABLE", "READY"]
    await rig.want(held={"echo": "model.json: is not JSON"})
    update = await rig.catalog.until(lambda u: len(u.models) == 1)
    assert update.models[0].endpoint is not None
    await rig.want()
    await rig.catalog.until(lambda u: not u.models)


async def test_settings_and_aliases_change_without_a_load(rig: Rig) -> None:
    wanted = rig.wanted()
    await rig.apply(wanted)
    before = await rig.catalog.entry("READY")
    config = {**wanted.version.config, "default_sampling": {"top_k": 3}}
    await rig.want(
        replace(wanted, version=replace(wanted.version, config=config), aliases=("other",))
    )
    update = await rig.catalog.until(lambda u: u.models[0].aliases == ("other",))
    assert update.models[0].config["default_sampling"] == {"top_k": 3}
    assert update.models[0].key == before.key


async def test_what_has_served_comes_back_after_a_crash_while_its_successor_fails(
    rig: Rig,
) -> None:
    await rig.apply(rig.wanted())
    await rig.catalog.entry("READY")
    await rig.want(rig.wanted(version=2, exit_code=1))
    await rig.catalog.entry("UNAVAILABLE", key="echo:2")
    os.kill(rig.runner(1).pid, signal.SIGKILL)
    await rig.catalog.entry("UNAVAILABLE")
    await rig.catalog.entry("READY", epoch=2)


async def test_without_memory_for_both_the_new_one_is_refused(short_path: Path) -> None:
    rig = await Rig.start(short_path, PATIENT, memory=MIB)
    await rig.apply(rig.wanted())
    await rig.catalog.entry("READY")
    await rig.want(rig.wanted(version=2))
    refused = await rig.catalog.entry("UNAVAILABLE", key="echo:2")
    assert refused.reason == "memory: needs 1.0 MiB, 0.0 MiB available"
    assert not refused.awaited
    assert rig.runner(1).alive
    await rig.close()


async def test_a_model_may_unload_first_where_memory_is_short(short_path: Path) -> None:
    rig = await Rig.start(short_path, PATIENT, memory=MIB)
    await rig.apply(rig.wanted())
    await rig.catalog.entry("READY")
    await rig.want(replace(rig.wanted(version=2), unload_first=True))
    refused = await rig.catalog.entry("UNAVAILABLE", key="echo:2")
    assert refused.awaited
    # Its back-off is ten minutes: it is the end of the old one that starts it.
    ready = await rig.catalog.entry("READY", key="echo:2")
    assert not ready.awaited
    assert [e.version for e in rig.catalog.current.models] == [2]  # type: ignore[union-attr]
    await rig.close()


async def test_with_memory_enough_unload_first_loads_first_too(rig: Rig) -> None:
    await rig.apply(rig.wanted())
    await rig.catalog.entry("READY")
    await rig.want(replace(rig.wanted(version=2), unload_first=True))
    update = await rig.catalog.until(lambda u: u.models[-1].state == "READY")
    assert (update.models[0].version, update.models[0].state) == (1, "READY")


async def test_only_so_many_load_at_a_time(short_path: Path) -> None:
    rig = await Rig.start(short_path, replace(FAST, parallel_loads=1))
    gated = rig.wanted("a", load_gate="gate")
    os.mkfifo(gated.version.directory / "gate")
    await rig.apply(gated, rig.wanted("b"))
    update = await rig.catalog.until(lambda u: any(e.state == "LOADING" for e in u.models))
    assert [(e.state, e.reason) for e in update.models] == [
        ("LOADING", ""),
        ("UNAVAILABLE", "not loaded"),
    ]
    await asyncio.to_thread((gated.version.directory / "gate").write_bytes, b"")
    await rig.catalog.entry("READY", key="b:1")
    await rig.close()


async def test_a_version_that_goes_before_its_turn_is_settled(short_path: Path) -> None:
    rig = await Rig.start(short_path, replace(FAST, parallel_loads=1))
    gated = rig.wanted("a", load_gate="gate")
    os.mkfifo(gated.version.directory / "gate")
    await rig.apply(gated, rig.wanted("b"))
    settled = asyncio.create_task(rig.manager.settled())
    await rig.catalog.entry("LOADING", key="a:1")
    await rig.want()
    await asyncio.wait_for(settled, 30)
    await rig.close()


async def test_a_successor_lets_the_old_files_runner_serve_until_the_new_ones_does(
    short_path: Path,
) -> None:
    first = await Rig.start(short_path)
    wanted = replace(first.wanted(), content="a")
    await first.apply(wanted)
    before = await first.catalog.entry("READY")
    await first.crash()
    successor = await Rig.start(short_path)
    await successor.apply(replace(wanted, content="b"))
    update = await successor.catalog.until(lambda u: len(u.models) > 0)
    assert before.key in {e.key for e in update.models if e.endpoint is not None}
    update = await successor.catalog.until(lambda u: [e.epoch for e in u.models] == [2])
    assert update.models[0].state == "READY"
    first.manager.kill()
    await first.manager.close(0.0)
    await successor.close()


async def test_a_drain_ends_at_its_limit(short_path: Path) -> None:
    rig = await Rig.start(short_path, replace(FAST, drain=0.1))
    await rig.apply(rig.wanted())
    worker = await Worker.connect(rig)
    await worker.offered({1})
    await rig.want()  # the worker never lets go
    await rig.catalog.until(lambda u: not u.models)
    assert rig.runtime.runner_directories() == []
    worker.writer.close()
    await rig.close()


async def test_warm_up_requests_are_answered_before_a_version_is_ready(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = rig.wanted(answer="a")
    requests = [{"prompt": "Hello", "max_tokens": 3, "count": 2}]
    config = {**wanted.version.config, "warmup": requests}
    await rig.apply(replace(wanted, version=replace(wanted.version, config=config)))
    await rig.catalog.entry("READY")
    answered = [line for line in caplog.messages if "request" in line]
    assert answered == ["[echo:1] request 1: 3 tokens", "[echo:1] request 2: 3 tokens"]


async def test_a_version_that_cannot_answer_them_is_unavailable(rig: Rig) -> None:
    wanted = rig.wanted(die_after=1)
    config = {
        **wanted.version.config,
        "warmup": [{"prompt": "Hello", "max_tokens": 3, "count": 1}],
    }
    await rig.apply(replace(wanted, version=replace(wanted.version, config=config)))
    reason = (await rig.catalog.entry("UNAVAILABLE")).reason
    assert reason == "warmup[0]: the runner is gone"
