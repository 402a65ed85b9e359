"""One endpoint reached through a door: its text, its agent, and what keeps it from being served."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blink_server.remote.reach import Means, Reach
from blink_server.remote.text_cache import TextCache

SECONDS = 20
LAYOUT = "0123456789abcdef"  # of the host's rings
AGENT = """
import json, os, signal, socket, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
link = socket.socket(socket.AF_UNIX)
link.connect(sys.argv[1])
lines = link.makefile("rw")

def ask(**said):
    print(json.dumps(said), file=lines, flush=True)
    return json.loads(lines.readline())

open(sys.argv[2] + ".started", "w").close()
told = ask(type="attach", layout_hash="0123456789abcdef")
if told["type"] == "refused":
    sys.exit(told["reason"])
again = ask(type="attach again")
name = ask(type="connect", name={"number": 1})
with open(sys.argv[2] + ".told", "w") as file:
    json.dump([os.getpid(), told, again, name], file)
print(json.dumps({"type": "serving"}), flush=True)
lines.readline()
open(sys.argv[2] + ".ended", "w").close()
"""


class FakeBackend:
    """Its agents say what they are told. Like one that waits for an answer they hear no signal."""

    ring_layout = LAYOUT

    def agent_command(self, runner: str, serve: str) -> list[str]:
        return [sys.executable, "-c", AGENT, runner, serve]


class StrangeBackend(FakeBackend):
    """Of another build than the host's."""

    ring_layout = "0"


class RenewedBackend(FakeBackend):
    """Its agents are already of another build than this process."""

    def agent_command(self, runner: str, serve: str) -> list[str]:
        return [sys.executable, "-c", AGENT.replace(LAYOUT, "0"), runner, serve]


class Running:
    """A reach and its task."""

    def __init__(self, site: Any, directory: Path, **changes: Any) -> None:
        means = Means(
            host=site.link,
            cache=TextCache(directory / "cache", site.link),
            backends={
                **{"fake": FakeBackend(), "strange": StrangeBackend()},
                **{"renewed": RenewedBackend(), "local": object()},
            },
            tokenizers={"huggingface": lambda *_: pytest.fail("nobody loads it here")},
            transport="fake",
            device="mlx5_2",
            ranges=2,
        )
        files = site.files.of(site.entry)
        self._told = asyncio.Event()
        self.reach = Reach(
            replace(site.entry, files=files, **changes), means, directory, self._told.set
        )
        self._said = directory / "ring.sock.told"
        self.ended = directory / "ring.sock.ended"
        self.started = directory / "ring.sock.started"
        self.task = asyncio.create_task(self.reach.run())

    async def told(self) -> None:
        """Wait for the next word of it."""
        await asyncio.wait_for(self._told.wait(), SECONDS)
        self._told.clear()

    def heard_by_agent(self) -> list[Any]:
        found: list[Any] = json.loads(self._said.read_text())
        return found

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@pytest.fixture
async def running(site: Any, short_path: Path) -> AsyncIterator[Running]:
    running = Running(site, short_path)
    yield running
    await running.close()


async def test_an_agent_gets_what_the_gate_says(site: Any, running: Running) -> None:
    await running.told()
    reach = running.reach
    assert reach.endpoint is not None
    assert reach.endpoint.address["socket"].endswith("/ring.sock")
    assert reach.files is not None
    assert (reach.files / "tokenizer.json").exists()
    _, told, again, name = running.heard_by_agent()
    assert told["address"] == {"number": 1, "device": "mlx5_2"}
    assert again["address"] == {"number": 2, "device": "mlx5_2"}
    assert name == {"type": "connected", "name": {"number": -1}}
    assert site.gates[0].names == [{"number": 1}]
    assert site.gates[0].ranges == 2


async def test_an_end_gives_the_ranges_back(site: Any, running: Running) -> None:
    await running.told()
    await running.close()
    async with asyncio.timeout(SECONDS):
        while not site.gates[0].closed:  # noqa: ASYNC110 (a gate tells nobody)
            await asyncio.sleep(0)


async def test_a_killed_agent_has_a_successor(site: Any, running: Running) -> None:
    await running.told()
    os.kill(running.heard_by_agent()[0], signal.SIGKILL)
    await running.told()
    assert [gate.closed for gate in site.gates] == [1, 0]
    assert running.reach.failure == ""


async def test_an_agent_whose_ranges_are_lost_has_a_successor(site: Any, running: Running) -> None:
    await running.told()
    site.gates[0].lost.set()
    await running.told()
    assert running.ended.exists()  # by itself: it was not killed
    assert [gate.closed for gate in site.gates] == [1, 0]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"config": {"tokenizer": {"name": "exotic"}}}, "no plugin here brings the tokenizer"),
        ({"backend": "other"}, "no plugin here reaches the backend 'other' remotely"),
        ({"backend": "local"}, "no plugin here reaches the backend 'local' remotely"),
        ({"epoch": 8}, "the host refuses: tiny:1 epoch 8 is not in service"),
        ({"backend": "strange"}, "the host refuses: tiny:1 epoch 1: another layout"),
    ],
)
async def test_why_it_is_not_served_is_said(
    site: Any, short_path: Path, changes: dict[str, Any], complaint: str
) -> None:
    running = Running(site, short_path, **changes)
    await running.told()
    assert complaint in running.reach.failure
    assert running.reach.endpoint is None
    assert running.reach.tried.is_set()
    await running.close()
    assert site.gates == []
    assert not running.started.exists(), "an agent was started in vain"


async def test_an_agent_of_another_build_gives_the_ranges_back(
    site: Any, short_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    running = Running(site, short_path, backend="renewed")
    await running.told()
    assert "its agent ended" in running.reach.failure
    assert f"ring layout {LAYOUT} here differs from the agent's 0" in caplog.text
    await running.close()
    assert site.gates[0].closed == 1
