"""The handshake between a runner and an agent; `test_process.py` has it between processes."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from blink_persistent.agent import attach as attaching
from blink_persistent.agent.attach import attach, open_port
from blink_persistent.agent.offer import RingOffer
from blink_persistent.lines import LineSocket
from blink_persistent.testing.scripted_harness import ScriptedHarness
from blink_persistent.testing.scripted_shape import ScriptedShape
from blink_server.errors import Unavailable

OFFER = {"transport": "memory", "first_range": 0, "ranges": 1, "epoch": 1, "limits": {}}


@pytest.fixture
def offered(short_path: Path) -> Iterator[tuple[RingOffer, str]]:
    """An offer of a ring, and where it is made."""
    path = short_path / "runner.sock"
    with ScriptedHarness(ScriptedShape()) as harness:
        address = {"bytes": harness.ring.field("total_bytes")}
        offer = RingOffer(path, {**OFFER, "address": address}, [harness.ring_fd, harness.doorbell])
        offer.start()
        yield offer, str(path)
        offer.close()


def test_an_offer_makes_a_port(offered: tuple[RingOffer, str]) -> None:
    link, offer, descriptors = attach(offered[1])
    port = open_port(offer, descriptors, link)
    assert (port.epoch, port.ranges) == (1, 1)
    assert not any(os.get_inheritable(fd) for fd in descriptors)
    port.close()
    link.close()
    for fd in descriptors:
        os.close(fd)


def test_another_layout_is_refused_by_name(
    offered: tuple[RingOffer, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attaching, "LAYOUT_HASH", 0xABC)
    with pytest.raises(Unavailable, match="differs from the agent's 0000000000000abc"):
        attach(offered[1])


def test_the_ranges_are_one_agents_until_it_has_detached(offered: tuple[RingOffer, str]) -> None:
    link, _, descriptors = attach(offered[1])
    with pytest.raises(Unavailable, match=f"refused: agent {os.getpid()} has its ranges"):
        attach(offered[1])
    link.close()  # a dying process does this too, with copies of it still under way
    with pytest.raises(Unavailable, match="has its ranges"):
        attach(offered[1])
    for fd in descriptors:
        os.close(fd)


def test_a_detached_agent_has_a_successor(offered: tuple[RingOffer, str]) -> None:
    for _ in range(3):
        link, _, descriptors = attach(offered[1])
        link.send({"type": "detach"})
        link.close()
        assert offered[0].flush(10)
        for fd in descriptors:
            os.close(fd)


def test_a_flush_is_answered_by_its_own_number(offered: tuple[RingOffer, str]) -> None:
    link, _, descriptors = attach(offered[1])
    assert not offered[0].flush(0.01)
    (late,) = link.messages()
    link.send({"type": "flushed", "number": late["number"]})
    link.send({"type": "flushed", "number": late["number"] + 7})
    assert not offered[0].flush(0.01)
    (second,) = link.messages()
    assert second["number"] != late["number"]
    link.close()
    assert offered[0].flush(10)  # it is gone: nobody is left who could write
    for fd in descriptors:
        os.close(fd)


@pytest.mark.parametrize("line", [b"garbage\n", b"[]\n", b"{}\n", b"\n", b"x" * 100_000])
def test_garbage_ends_its_connection_and_nothing_else(
    offered: tuple[RingOffer, str], line: bytes
) -> None:
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(offered[1])
        stranger.settimeout(10)
        with contextlib.suppress(ConnectionError):
            stranger.sendall(line)
            assert stranger.recv(1) == b""
    link, _, descriptors = attach(offered[1])
    link.close()
    for fd in descriptors:
        os.close(fd)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (
            {"transport": "pigeon"},
            "does not know the transport 'pigeon'; it has memory, cuda, rdma",
        ),
        ({"epoch": 2}, "the ring's epoch is 1, not 2 as the runner offers"),
        ({"address": {}}, "no usable ring"),
        ({"ranges": 2}, "the ring has 1 ranges, not 2 from number 0 on"),
        ({"first_range": 1}, "the ring has 1 ranges"),
        ({"address": {"bytes": 4096}}, "no usable ring"),
    ],
)
def test_an_offer_that_does_not_hold_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with ScriptedHarness(ScriptedShape()) as harness:
        offer = {**OFFER, "address": {"bytes": harness.ring.field("total_bytes")}, **changes}
        mine, _ = socket.socketpair()
        with mine, pytest.raises(Unavailable, match=complaint):
            open_port(offer, [harness.ring_fd, harness.doorbell], LineSocket(mine))


def test_lines_are_taken_apart_and_put_together() -> None:
    mine, theirs = socket.socketpair()
    with mine, theirs:
        line = LineSocket(mine)
        theirs.sendall(json.dumps({"a": 1}).encode() + b'\n{"b": 2}\n{"c"')
        assert list(line.messages()) == [{"a": 1}, {"b": 2}]
        theirs.sendall(b": 3}\n")
        assert list(line.messages()) == [{"c": 3}]
        theirs.close()
        assert list(line.messages()) == []
        assert line.ended


def test_descriptors_nobody_waits_for_are_closed() -> None:
    mine, theirs = socket.socketpair()
    with mine, theirs:
        before = len(list(Path("/proc/self/fd").iterdir()))
        LineSocket(theirs).send({"a": 1}, [theirs.fileno()])
        assert list(LineSocket(mine).messages()) == [{"a": 1}]
        # Fewer, where what earlier tests have left has been collected meanwhile.
        assert len(list(Path("/proc/self/fd").iterdir())) <= before
