"""The owner's child that serves workers: when it serves, and how its end is told."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from blink_persistent.agent.offer import RingOffer
from blink_persistent.frontend.shm import connect
from blink_persistent.gpu_runner.agent_process import AgentProcess
from blink_persistent.testing.agent_thread import lease_limits
from blink_persistent.testing.scripted_shape import ScriptedShape
from blink_persistent.testing.threaded_ring import ThreadedRing
from blink_server.backend import Endpoint, ModelVersion
from blink_server.errors import EngineFailure

VERSION = ModelVersion("tiny", 3, Path("nowhere"), {})
SHAPE = ScriptedShape(ranges=1)


@pytest.fixture
def sockets(short_path: Path) -> tuple[Path, Path]:
    return short_path / "offer.sock", short_path / "ring.sock"


@pytest.fixture
def offer(sockets: tuple[Path, Path]) -> Iterator[RingOffer]:
    """Of a ring in this process's memory."""
    ring = ThreadedRing(SHAPE)
    harness = ring.harness
    offer = RingOffer(
        sockets[0],
        {
            "transport": "memory",
            "address": {"bytes": harness.ring.field("total_bytes")},
            "first_range": 0,
            "ranges": 1,
            "epoch": SHAPE.epoch,
            "limits": lease_limits(SHAPE),
        },
        [harness.ring_fd, harness.doorbell],
    )
    offer.start()
    yield offer
    offer.close()
    ring.close()


@pytest.mark.usefixtures("offer")
async def test_one_follows_the_other(sockets: tuple[Path, Path]) -> None:
    endpoint = Endpoint("shm", {"socket": str(sockets[1])})
    first = AgentProcess("tiny:3", *sockets)
    first.wait_until_serving()
    assert first.ended() == ""
    (pid,) = _children()
    os.kill(pid, signal.SIGKILL)
    while not (ended := first.ended()):
        os.sched_yield()
    assert ended == "signal SIGKILL"
    first.close()
    second = AgentProcess("tiny:3", *sockets)
    second.wait_until_serving()
    session = await connect(VERSION, endpoint)
    await session.close()
    second.close()
    assert _children() == []


def test_one_that_cannot_serve_says_why(
    sockets: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    agent = AgentProcess("tiny:3", *sockets)
    with pytest.raises(EngineFailure, match=r"its agent: exit code 1 \(.*offer.sock"):
        agent.wait_until_serving()
    assert "tiny:3 agent: " in caplog.text
    assert _children() == []


def _children() -> list[int]:
    """Agents among this process's children."""
    pid = os.getpid()
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [
        int(child)
        for child in children
        if b"blink_persistent.agent" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]
