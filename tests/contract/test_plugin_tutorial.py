"""docs/plugins.md: the tutorial does what it says, block by block, in an empty folder; so does the
runner of a backend with a process of its own."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from blink_server.backend import ModelVersion
from blink_server.repository.runner_process import LoadError
from blink_server.testing.reserved_port import reserve_port
from blink_server.testing.started_runner import running

PAGE = Path(__file__).parents[2] / "docs" / "plugins.md"
BLOCK = re.compile(
    r"(?:^`(?P<path>[\w./-]+)`:\n\n)?^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.M | re.S
)


class Block(NamedTuple):
    path: str
    kind: str
    text: str


def blocks_of(section: str) -> list[Block]:
    _, _, rest = PAGE.read_text(encoding="utf-8").partition(f"\n## {section}\n")
    text = rest.partition("\n## ")[0]
    return [Block(m["path"] or "", m["kind"], m["text"]) for m in BLOCK.finditer(text)]


def tutorial() -> list[Block]:
    return blocks_of("A plugin in an hour")


class Follower:
    """Does what the blocks say; `output` is what the last command printed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.output = ""
        self.servers: list[subprocess.Popen[str]] = []
        self.reserved = reserve_port()
        self.port = self.reserved.getsockname()[1]
        found = {name: value for name, value in os.environ.items() if "BLINK" not in name}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = found | {"PATH": path, "XDG_RUNTIME_DIR": str(directory)}

    def follow(self, block: Block) -> None:
        if block.path:
            file = self.directory / block.path
            file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            file.write_text(block.text, encoding="utf-8")
            file.chmod(0o644)
        elif block.kind == "sh":
            self.run(block.text.replace("8000", str(self.port)))
        elif block.kind == "text":
            assert block.text.strip() in self.output
        else:
            pytest.fail(f"nobody knows what to do with {block}")

    def run(self, command: str) -> None:
        if command.rstrip().endswith("&"):
            self.serve(command.rstrip().rstrip("&"))
            return
        done = subprocess.run(
            ["bash", "-ec", command],
            cwd=self.directory,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout
        self.output = done.stdout

    def serve(self, command: str) -> None:
        server = subprocess.Popen(
            ["bash", "-ec", f"exec {command}"],
            cwd=self.directory,
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.servers.append(server)
        assert server.stdout is not None
        for line in server.stdout:
            if "Blink server on" in line:
                return
        pytest.fail("the server did not start")

    def stop(self) -> None:
        for server in self.servers:
            server.send_signal(signal.SIGTERM)
            server.communicate(timeout=60)
        self.reserved.close()


@pytest.fixture
def follower(short_path: Path) -> Iterator[Follower]:
    following = Follower(short_path)
    yield following
    following.stop()


def test_the_tutorial_works(follower: Follower) -> None:
    blocks = tutorial()
    assert {"python", "json", "sh", "text"} <= {block.kind for block in blocks}
    for block in blocks:
        follower.follow(block)


def test_the_problem_that_it_quotes_is_what_check_says(follower: Follower) -> None:
    for block in tutorial():
        if block.path:
            follower.follow(block._replace(text=block.text.replace('"marks": 3', '"marks": -1')))
    with pytest.raises(AssertionError, match=r"backend_options\.marks: is -1; must be at least 0"):
        follower.run("blink-server check model_repository")


async def test_the_runner_serves_and_tells_why_it_cannot(short_path: Path) -> None:
    [runner_file] = blocks_of("The parts of a plugin")
    path = short_path / runner_file.path
    path.write_text(runner_file.text, encoding="utf-8")
    version = ModelVersion("shouter", 1, short_path, {})
    async with running([sys.executable, str(path)], version) as runner:
        with pytest.raises(LoadError, match=r"^cannot load: .*marks\.bin"):
            await runner.loaded(60.0)
    (short_path / "marks.bin").write_bytes(b"!!!")
    async with running([sys.executable, str(path)], version) as runner:
        ready = await runner.loaded(60.0)
        reader, writer = await asyncio.open_unix_connection(ready.endpoint.address["socket"])
        writer.write(b"hello\n")
        assert await asyncio.wait_for(reader.read(), 60.0) == b"HELLO\n!!!"
        writer.close()
        await runner.drain(1.0, 60.0)
        ended = await asyncio.wait_for(runner.process.wait(), 60.0)
    assert ended.code == 0
