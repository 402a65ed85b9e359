"""Whole servers of real parts: provisioner, workers, runner, ring and scheduler."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from blink_server.testing.server_process import ServerProcess, processes
from blink_server.testing.tiny_gguf import write_tiny_gguf

Start = Callable[..., Awaitable[ServerProcess]]


@pytest.fixture(scope="session")
def tiny_repository() -> Iterator[Path]:
    """A repository into which `blink-server import` has brought a tiny random Llama, "tiny"."""
    with tempfile.TemporaryDirectory(prefix="blink-") as directory:
        path = Path(directory)
        write_tiny_gguf(path / "tiny.gguf")
        command(
            *("import", f"--gguf={path / 'tiny.gguf'}", "--name=tiny", "--max-rows=4"),
            f"--model-repository={path / 'repository'}",
        )
        yield path / "repository"


def command(*arguments: str, status: int = 0) -> str:
    """Run `blink-server`; returns what it printed."""
    finished = subprocess.run(
        [sys.executable, "-m", "blink_server", *arguments], capture_output=True, text=True
    )
    assert finished.returncode == status, finished.stdout + finished.stderr
    return finished.stdout + finished.stderr


@pytest.fixture
def blink_server() -> Callable[..., str]:
    return command


@pytest.fixture
def repository(short_path: Path) -> Path:
    path = short_path / "repository"
    path.mkdir()
    return path


@pytest.fixture
def copy_tiny(tiny_repository: Path, repository: Path) -> Callable[[str], Path]:
    """Copies the imported version into `repository` under a name; returns its directory."""

    def copy(name: str) -> Path:
        shutil.copytree(tiny_repository / "tiny", repository / name)
        return repository / name / "1"

    return copy


@pytest.fixture
async def start(short_path: Path, repository: Path) -> AsyncIterator[Start]:
    """Starts servers on `repository`; each must be stopped or killed, and leave nothing."""
    servers: list[ServerProcess] = []

    async def start(*arguments: str) -> ServerProcess:
        server = await ServerProcess.start(repository, short_path / "run", *arguments)
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.kill_everything()
        await server.exit()
        print(server.output)  # shown where the test fails


@pytest.fixture
def assert_nothing_left(short_path: Path) -> Callable[[], None]:
    def check() -> None:
        assert processes(short_path / "run") == []
        assert not (short_path / "run").exists()

    return check


@pytest.fixture
def chat_body() -> Callable[..., dict[str, Any]]:
    def body(content: str = "Hello", **fields: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": content}]
        return {"model": "scripted", "messages": messages, "temperature": 0, **fields}

    return body
