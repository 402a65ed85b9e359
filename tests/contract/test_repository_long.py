"""Minutes of changes under traffic, hundreds of reloads, thousands of versions."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import shutil
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
import openai
import pytest

from blink_server.process import ProcessId
from blink_server.testing.fake_repository import token_ids, write_fake_version
from blink_server.testing.server_process import ServerProcess
from blink_server.testing.tiny_repository import write_json
from blink_server.testing.traffic import Traffic

Start = Callable[..., Awaitable[ServerProcess]]

pytestmark = pytest.mark.slow

SECONDS = 60.0
CYCLES = 200
IDENTITY = [token_ids(character)[0] for character in "0123456789. "]
CHANGE = re.compile(r"echo:(\d+) (READY|UNAVAILABLE: unloaded|UNAVAILABLE: runner) .*epoch=(\d+)")


@dataclass
class Answered:
    """One request: when it was sent and answered, and what answered it."""

    sent: float
    ended: float
    text: str


class Service:
    """When which endpoint served, from the server's log."""

    def __init__(self, server: ServerProcess) -> None:
        self.ready: dict[str, float] = {}
        self.gone: dict[str, float] = {}
        self._server = server
        self._read = 0

    def look(self) -> None:
        """Note the time of what has been logged since the last look."""
        lines, self._read = self._server.lines[self._read :], len(self._server.lines)
        for line in lines:
            if (found := CHANGE.search(line)) is not None:
                version, state, epoch = found.groups()
                times = self.ready if state == "READY" else self.gone
                times[f"{version}.{epoch}"] = time.monotonic()


class Changes:
    """Random changes of one model that always leave a version that can be loaded."""

    def __init__(self, repository: Path, seed: int) -> None:
        self._repository = repository
        self._random = random.Random(seed)
        self._good: set[int] = set()
        self._next = 1
        self.add()

    def step(self) -> str:
        """Make one change; says which."""
        change = self._random.choice([self.add, self.rewrite, self.damage, self.mend, self.remove])
        change()
        return change.__name__

    def add(self) -> None:
        """A further version, written aside and renamed into place."""
        aside = self._repository.with_name("aside")
        shutil.rmtree(aside, ignore_errors=True)
        directory = write_fake_version(aside, version=self._next, identity=IDENTITY)
        (self._repository / "echo").mkdir(exist_ok=True)
        directory.rename(self._repository / "echo" / str(self._next))
        self._good.add(self._next)
        self._next += 1

    def rewrite(self) -> None:
        """The same version with other files."""
        self._write(self._random.choice(self._present()), token_seconds=0.001)

    def damage(self) -> None:
        """A version that cannot be loaded, by its runner's end or by its config.json."""
        version = max(self._present())
        if self._good == {version}:
            return
        self._good.discard(version)
        if self._random.random() < 0.5:
            self._write(version, exit_code=3)
        else:
            (self._directory(version) / "tokenizer.json").unlink(missing_ok=True)

    def mend(self) -> None:
        """Every damaged version is whole again."""
        for version in set(self._present()) - self._good:
            shutil.rmtree(self._directory(version))
            write_fake_version(self._repository, version=version, identity=IDENTITY)
            self._good.add(version)

    def remove(self) -> None:
        """Roll back: the highest version goes, if another is good."""
        version = max(self._present())
        if self._good - {version}:
            shutil.rmtree(self._directory(version))
            self._good.discard(version)

    def _present(self) -> list[int]:
        return [int(path.name) for path in (self._repository / "echo").iterdir()]

    def _directory(self, version: int) -> Path:
        return self._repository / "echo" / str(version)

    def _write(self, version: int, **options: object) -> None:
        directory = self._directory(version)
        write_json(directory / "new.tmp", {"identity": IDENTITY, **options})
        (directory / "new.tmp").replace(directory / "fake.json")


async def test_a_minute_of_traffic_while_everything_changes(start: Start, repository: Path) -> None:
    changes = Changes(repository, seed=20261129)
    server = await start("--settle-secs=0.2", "--workers=2", "--drain-timeout-secs=30")
    url = await server.ready()
    service = Service(server)
    answered: list[Answered] = []
    end = time.monotonic() + SECONDS
    clients = [asyncio.create_task(_ask(url, answered, end, streams=n % 2 == 0)) for n in range(6)]
    made = []
    while time.monotonic() < end:
        made.append(changes.step())
        for _ in range(10):
            await asyncio.sleep(0.1)
            service.look()
    await asyncio.gather(*clients)
    service.look()
    assert len(set(made)) == 5
    assert len(answered) > 200
    assert len({each.text for each in answered}) > 5
    for each in answered:
        assert service.ready[each.text] <= each.ended + 0.2
        assert service.gone.get(each.text, each.ended) >= each.sent


async def _ask(url: str, answered: list[Answered], end: float, *, streams: bool) -> None:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        while time.monotonic() < end:
            sent = time.monotonic()
            if streams:
                chunks = await client.completions.create(
                    model="echo", prompt="?", max_tokens=12, stream=True
                )
                text = "".join([chunk.choices[0].text async for chunk in chunks])
            else:
                whole = await client.completions.create(model="echo", prompt="?", max_tokens=12)
                text = whole.choices[0].text
            answered.append(Answered(sent, time.monotonic(), text.split()[0]))


def held(process: ProcessId) -> tuple[int, int]:
    """(open descriptors, resident bytes)."""
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    descriptors = sum(1 for _ in Path(f"/proc/{process.pid}/fd").iterdir())
    return descriptors, pages * os.sysconf("SC_PAGE_SIZE")


async def test_two_hundred_reloads_leave_nothing_behind(start: Start, repository: Path) -> None:
    directory = write_fake_version(repository, answer="a")
    server = await start("--settle-secs=0", "--log-level=warning")
    url = await server.ready()
    traffic = Traffic.start(url, clients=2, tokens=1)
    parts = [ProcessId.of(server.pid), server.front(), *server.workers()]
    before: list[tuple[int, int]] = []
    for cycle in range(CYCLES):
        text = "ab"[cycle % 2]
        write_json(directory / "new.tmp", {"answer": token_ids(text)})
        (directory / "new.tmp").replace(directory / "fake.json")
        await traffic.until(text)
        while len(list(server.runtime.glob("runner-*"))) > 1:
            await traffic.until(text)
        if cycle == CYCLES // 10:  # caches are full by now
            before = [held(part) for part in parts]
    outcomes = await traffic.stop()
    assert {outcome.failure for outcome in outcomes} == {""}
    assert {outcome.text for outcome in outcomes} == {"a", "b"}
    for (descriptors, memory), (now, resident) in zip(before, map(held, parts), strict=True):
        assert abs(now - descriptors) <= 3  # connections of the traffic come and go
        assert resident < 1.1 * memory


async def test_three_thousand_versions(start: Start, repository: Path) -> None:
    first = write_fake_version(repository, "m0000")
    for model in range(1000):
        for version in (1, 2, 3):
            directory = repository / f"m{model:04}" / str(version)
            if directory != first:
                shutil.copytree(first, directory, copy_function=os.link)
    began = time.monotonic()
    server = await start("--model-control=explicit", "--load-model=m0007")
    url = await server.ready()
    assert time.monotonic() - began < 10.0
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        times = []
        for _ in range(5):
            asked = time.monotonic()
            rows = (await client.post("/v2/repository/index")).json()
            times.append(time.monotonic() - asked)
        assert len(rows) == 3000
        ready = (await client.post("/v2/repository/index", json={"ready": True})).json()
        assert [(row["name"], row["version"]) for row in ready] == [("m0007", "3")]
        body = {"model": "m0007", "prompt": "?", "max_tokens": 1}
        assert (await client.post("/v1/completions", json=body)).status_code == 200
    assert sorted(times)[2] < 0.1, json.dumps(times)
