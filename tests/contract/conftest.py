"""Whole servers whose runners are fakes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from blink_server.testing.fake_repository import write_fake_plugin
from blink_server.testing.server_process import ServerProcess

Start = Callable[..., Awaitable[ServerProcess]]


@pytest.fixture
def repository(short_path: Path) -> Path:
    path = short_path / "repository"
    path.mkdir()
    return path


@pytest.fixture
async def start(short_path: Path, repository: Path) -> AsyncIterator[Start]:
    plugins = write_fake_plugin(short_path / "plugins")
    servers: list[ServerProcess] = []

    async def start(*arguments: str) -> ServerProcess:
        server = await ServerProcess.start(
            repository, short_path / "run", *arguments, plugins=plugins
        )
        servers.append(server)
        return server

    yield start
    for server in reversed(servers):  # a successor before those whose children it has
        server.kill_everything()
        await server.exit()
        told = [line for line in server.lines if "] request " not in line]
        print("\n".join(told))  # shown where the test fails
