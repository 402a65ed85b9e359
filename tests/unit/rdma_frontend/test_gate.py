"""When the gate to a ring on this host gives ranges back. Ring and leases are real, verbs not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from blink_persistent.leases import LeaseKeeper
from blink_persistent.ring import LAYOUT_HASH
from blink_persistent.testing.scripted_harness import ScriptedHarness
from blink_persistent.testing.scripted_shape import ScriptedShape
from blink_server.backend import Endpoint
from blink_server.errors import Unavailable
from blink_server.remote.gates import Gate, GateOptions
from rdma_frontend.gate import open_gate
from rdma_frontend.testing.fake_verbs import FakeVerbs, use_fake_verbs

SHAPE = ScriptedShape(ranges=1)


@pytest.fixture
def fake() -> Iterator[FakeVerbs]:
    with use_fake_verbs() as made:
        yield made


@pytest.fixture
def leases(short_path: Path) -> Iterator[Path]:
    """Their socket; the ring has one range."""
    bells = [os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) for _ in range(2)]
    with ScriptedHarness(SHAPE) as harness:
        keeper = LeaseKeeper(
            harness.ring,
            harness.ring_fd,
            socket_path=short_path / "ring.sock",
            doorbell=bells[0],
            notify=bells[1:],
            limits={},
        )
        keeper.start()
        yield short_path / "ring.sock"
        keeper.close()
    for bell in bells:
        os.close(bell)


async def gate(leases: Path, device: str = "mlx5_0") -> Gate:
    options = GateOptions(device, 1, f"{LAYOUT_HASH:016x}")
    return await open_gate("m:1", Endpoint("shm", {"socket": str(leases)}), options)


async def test_ranges_are_the_next_ones_when_nothing_can_land(
    fake: FakeVerbs, leases: Path
) -> None:
    with pytest.raises(Unavailable, match="no such device"):
        await gate(leases, "none")
    for _ in range(2):
        opened = await gate(leases)
        await opened.offer()
        opened.close()


async def test_ranges_in_which_something_may_land_stay_this_processs(
    fake: FakeVerbs, leases: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise fake.PyverbsError("busy")

    opened = await gate(leases)
    await opened.offer()
    (pair,) = fake.pairs.values()
    monkeypatch.setattr(pair, "close", refuse)
    with pytest.raises(Unavailable, match="keeps the agent's connection: busy"):
        opened.close()
    with pytest.raises(Unavailable, match="0 of the ring's 1 ranges are free"):
        await gate(leases)
