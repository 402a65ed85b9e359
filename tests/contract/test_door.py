"""The door of a whole server: who starts it, and what it outlives."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from blink_server.errors import Unavailable
from blink_server.messages import CatalogUpdate, RegisterWorker
from blink_server.process import ProcessId
from blink_server.remote.credentials import open_key_directory
from blink_server.remote.host_link import HostLink, expect, send
from blink_server.runtime_dir import read_record
from blink_server.testing.eventually import eventually
from blink_server.testing.fake_repository import write_fake_version
from blink_server.testing.reserved_port import reserve_port
from blink_server.testing.server_process import ServerProcess, processes

Start = Callable[..., Awaitable[ServerProcess]]


class Door:
    """What a frontend sees of it."""

    def __init__(self, directory: Path) -> None:
        self._record = directory / "run" / "door.json"
        self.reserved = reserve_port()
        self.port = self.reserved.getsockname()[1]
        keys = directory / "keys"
        self.options = (
            *(f"--frontends-listen=127.0.0.1:{self.port}", f"--frontends-key-dir={keys}"),
            "--frontends-device=none",
        )
        self._link = HostLink("127.0.0.1", self.port, open_key_directory(keys), "test")

    def process(self) -> ProcessId:
        found = read_record(self._record)
        assert found is not None
        return found[0]

    async def models(self) -> list[str]:
        """What it tells a frontend there is."""
        lines = await self._link.open("follow")
        send(lines, RegisterWorker(os.getpid()))
        update = await expect(lines, CatalogUpdate)
        lines.writer.close()
        assert all(entry.files for entry in update.models)
        return [f"{entry.model} {entry.state}" for entry in update.models]


@pytest.fixture
def door(short_path: Path) -> Iterator[Door]:
    door = Door(short_path)
    yield door
    door.reserved.close()


async def test_it_tells_what_is_served_and_ends_with_the_server(
    start: Start, repository: Path, short_path: Path, door: Door
) -> None:
    write_fake_version(repository)
    server = await start(*door.options)
    await server.ready()
    assert f"127.0.0.1:{door.port}" in await server.line("Frontends elsewhere")
    assert await door.models() == ["echo READY"]
    assert await server.stop() == 0
    assert processes(short_path / "run") == []
    with pytest.raises(Unavailable):
        await door.models()


async def test_a_killed_door_is_started_again(start: Start, repository: Path, door: Door) -> None:
    write_fake_version(repository)
    server = await start(*door.options)
    await server.ready()
    first = door.process()
    os.kill(first.pid, signal.SIGKILL)
    await server.line("the door for frontends ended: signal SIGKILL; starting it again")
    assert await door.models() == ["echo READY"]  # the listening socket has been there all along
    assert door.process() != first
    assert await server.stop() == 0


async def test_a_tests_clean_up_takes_it_along(start: Start, repository: Path, door: Door) -> None:
    write_fake_version(repository)
    server = await start(*door.options)
    await server.ready()
    process = door.process()
    server.kill_everything()
    await server.exit()

    async def alive() -> bool:
        return process.alive

    await eventually(alive, lambda alive: not alive)


@pytest.mark.slow
async def test_it_outlives_the_provisioner(start: Start, repository: Path, door: Door) -> None:
    write_fake_version(repository)
    server = await start(*door.options)
    await server.ready()
    server.signal(signal.SIGKILL)
    await server.exit()
    before = door.process()
    assert await door.models() == ["echo READY"]
    other = await start(*door.options[:-1], "--frontends-device=other")
    assert "still lets frontends in" in await other.line("error: ")
    assert await other.exit() == 1
    successor = await start(*door.options)
    await successor.ready()
    assert door.process() == before
    assert await door.models() == ["echo READY"]
    assert await successor.stop() == 0


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--frontends-listen=127.0.0.1:0"], "needs --frontends-key-dir and --frontends-device"),
        (
            ["--frontends-listen=8010", "--frontends-key-dir=keys", "--frontends-device=x"],
            "--frontends-listen 8010: must be host:port",
        ),
    ],
)
async def test_options_that_do_not_fit_are_one_line(
    start: Start, options: list[str], complaint: str
) -> None:
    server = await start(*options)
    assert complaint in await server.line("error: ")
    assert await server.exit() == 1
