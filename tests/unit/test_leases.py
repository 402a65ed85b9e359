"""Ranges of a ring: leased to processes, taken back when their owner dies."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from blink_persistent.engines.scripted import ScriptedOptions, ScriptedProvisioned
from blink_persistent.graph_grid import default_grid
from blink_persistent.ring import LAYOUT_HASH, SlotState, unpack_status
from blink_persistent.runner import Runner
from blink_server.backend import ModelVersion

CONTEXT_LENGTH = 4096

# A worker that fills `count` slots of its range with requests that do not end by themselves. It
# answers when all of them are claimed and one has a token.
WORKER = """
import json, os, select, socket, sys, mmap
from blink_persistent.ring import LAYOUT_HASH, Ring
path, count = sys.argv[1], int(sys.argv[2])
link = socket.socket(socket.AF_UNIX)
link.connect(path)
link.sendall(json.dumps({"type": "attach", "layout_hash": f"{LAYOUT_HASH:016x}"}).encode() + b"\\n")
data, fds, _, _ = socket.recv_fds(link, 4096, 3)
answer = json.loads(data)
ring = Ring(mmap.mmap(fds[0], answer["bytes"]))
first = answer["range"] * ring.slots_per_range
for slot in range(first, first + count):
    ring.prompts[answer["range"]][:3] = [5, 6, 7]
    ring.records[slot]["prompt_length"] = 3
    ring.records[slot]["max_tokens"] = 4000
    ring.records[slot]["top_p"] = ring.records[slot]["repetition_penalty"] = 1
    ring.atomic.submit(slot, ring.atomic.submitted(slot) + 1)
os.eventfd_write(fds[1], 1)

def begun():
    slots = range(first, first + count)
    statuses = [ring.atomic.status(slot) for slot in slots]
    claimed = [status[0] for status in statuses] == [ring.atomic.submitted(slot) for slot in slots]
    return claimed and any(status[2] & 0xFFFFFFFF for status in statuses)

while not begun():
    select.select([fds[2]], [], [])
    os.eventfd_read(fds[2])
print(json.dumps(answer), flush=True)
sys.stdin.read()
"""


class Served:
    """A runner in this process whose steps are slow enough that nothing ends by itself."""

    def __init__(self, directory: Path, slots: int) -> None:
        config = {
            "deterministic": False,
            "limits": {
                "context_length": CONTEXT_LENGTH,
                "slots": slots,
                "max_queue": 16,
                "step_timeout_seconds": 30,
                "grammar_mib": 1,
            },
            "eos_token_ids": [2],
        }
        version = ModelVersion("m", 1, directory, config)
        options = ScriptedOptions(step_microseconds=2000, block_size=64, block_count=512)
        engine = ScriptedProvisioned(version, default_grid(8, 64), options)
        self.runner = Runner(version, engine, epoch=3)
        self.socket = directory / "ring.sock"
        self.runner.serve(self.socket)

    def start_worker(self, busy: int) -> tuple[subprocess.Popen[str], dict[str, int]]:
        command = [sys.executable, "-c", WORKER, str(self.socket), str(busy)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        worker = subprocess.Popen(command, **pipes)
        assert worker.stdout is not None
        return worker, json.loads(worker.stdout.readline())

    def attach(
        self, layout_hash: int = LAYOUT_HASH, **asked: int
    ) -> tuple[socket.socket, dict[str, object]]:
        link = socket.socket(socket.AF_UNIX)
        link.settimeout(10)
        link.connect(str(self.socket))
        hello = {"type": "attach", "layout_hash": f"{layout_hash:016x}", **asked}
        link.sendall(json.dumps(hello).encode() + b"\n")
        data, fds, _, _ = socket.recv_fds(link, 4096, 3)
        for fd in fds:
            os.close(fd)
        return link, json.loads(data)

    def states(self, range_index: int) -> set[SlotState]:
        ring = self.runner.ring
        first = range_index * ring.slots_per_range
        slots = range(first, first + ring.slots_per_range)
        return {unpack_status(ring.atomic.status(slot)[2])[1] for slot in slots}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    server = Served(tmp_path, slots=512)
    yield server
    server.runner.close()


@pytest.fixture
def single(tmp_path: Path) -> Iterator[Served]:
    server = Served(tmp_path, slots=256)
    yield server
    server.runner.close()


def kill(worker: subprocess.Popen[str]) -> None:
    worker.send_signal(signal.SIGKILL)
    worker.communicate()


def test_each_owner_gets_a_range_of_its_own(served: Served) -> None:
    first, one = served.attach()
    second, other = served.attach()
    assert {one["range"], other["range"]} == {0, 1}
    assert one["epoch"] == 3
    assert one["context_length"] == CONTEXT_LENGTH
    first.close()
    second.close()


def test_one_owner_too_many_is_told_what_to_raise(served: Served) -> None:
    links = [served.attach()[0] for _ in range(2)]
    _, answer = served.attach()
    assert answer["type"] == "refused"
    assert "limits.slots must be at least 256 x (workers + 1)" in str(answer["reason"])
    for link in links:
        link.close()


def test_ranges_side_by_side_are_one_owners(served: Served) -> None:
    first, _ = served.attach()
    _, refused = served.attach(ranges=2)
    assert "1 of the ring's 2 ranges are free" in str(refused["reason"])
    first.close()
    both, answer = served.attach(ranges=2)  # waits until the range is taken back
    assert answer["range"] == 0
    assert served.attach()[1]["type"] == "refused"
    both.close()
    other, answer = served.attach(ranges=2)
    assert answer["range"] == 0
    other.close()


@pytest.mark.parametrize("count", [0, -1, 3])
def test_ranges_that_cannot_be_are_refused(served: Served, count: int) -> None:
    assert served.attach(ranges=count)[1]["type"] == "refused"


def test_another_layout_is_refused_by_both_hashes(served: Served) -> None:
    _, answer = served.attach(layout_hash=LAYOUT_HASH ^ 1)
    assert answer["type"] == "refused"
    assert f"{LAYOUT_HASH:016x}" in str(answer["reason"])
    assert f"{LAYOUT_HASH ^ 1:016x}" in str(answer["reason"])


@pytest.mark.parametrize("line", [b"garbage\n", b"[]\n", b"{}\n", b"\n", b"x" * 70000])
def test_garbage_ends_the_connection_and_nothing_else(served: Served, line: bytes) -> None:
    link = socket.socket(socket.AF_UNIX)
    link.settimeout(10)
    link.connect(str(served.socket))
    link.sendall(line)
    with contextlib.suppress(ConnectionResetError):
        assert link.recv(1) == b""
    assert served.attach()[1]["type"] == "attached"


def test_slots_of_a_killed_worker_are_taken_back(single: Served) -> None:
    worker, lease = single.start_worker(busy=20)  # 8 rows run, 12 requests wait
    assert single.states(0) > {SlotState.EMPTY}
    kill(worker)
    link, answer = single.attach()  # answered only once the range is free
    assert answer["type"] == "attached"
    assert answer["range"] == lease["range"]
    assert single.states(0) == {SlotState.EMPTY}
    assert single.runner.ring.field("rows_used") == 0
    link.close()


def test_a_device_may_write_until_its_process_has_ended(served: Served) -> None:
    """The end of a connection proves nothing of what a device still does for its owner."""
    program = """
import json, os, socket, sys
from blink_persistent.ring import LAYOUT_HASH
link = socket.socket(socket.AF_UNIX)
link.connect(sys.argv[1])
hello = {"type": "attach", "layout_hash": f"{LAYOUT_HASH:016x}", "ranges": 2, "fenced": True}
link.sendall(json.dumps(hello).encode() + b"\\n")
link.recv(4096)
link.close()
print("closed", flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", program, str(served.socket)]
    owner = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "closed\n"
    assert "0 of the ring's 2 ranges are free" in str(served.attach()[1]["reason"])
    kill(owner)
    link, answer = served.attach(ranges=2)
    while answer["type"] == "refused":  # its end is heard by another descriptor than this request
        link.close()
        link, answer = served.attach(ranges=2)
    link.close()


def test_a_farewell_gives_ranges_back_while_the_process_lives(served: Served) -> None:
    link, _ = served.attach(ranges=2, fenced=True)
    link.sendall(b'{"type": "detach"}\n')
    link.close()
    again, answer = served.attach(ranges=2)
    assert answer["range"] == 0
    again.close()


def test_a_successor_continues_the_tickets(single: Served) -> None:
    kill(single.start_worker(busy=4)[0])
    worker, _ = single.start_worker(busy=4)  # submits the ring's words + 1
    tickets = [single.runner.ring.atomic.status(slot)[0] for slot in range(4)]
    assert tickets == [2, 2, 2, 2]
    kill(worker)


def test_the_death_of_one_worker_leaves_the_other_alone(served: Served) -> None:
    survivor, kept = served.start_worker(busy=2)
    victim, lost = served.start_worker(busy=2)
    kill(victim)
    link, answer = served.attach()
    assert answer["range"] == lost["range"]
    # Paused while the victims were prefilled, perhaps, but in flight.
    in_flight = {SlotState.DECODE_PROCESSING, SlotState.DECODE_PAUSED}
    assert served.states(kept["range"]) & in_flight
    link.close()
    kill(survivor)


def test_a_drain_ends_when_every_slot_is_empty(served: Served) -> None:
    worker, _ = served.start_worker(busy=1)
    assert not served.runner.drain(seconds=0.01)
    kill(worker)
    assert served.runner.drain(seconds=10)
    assert served.runner.ring.field("accepting") == 0
    assert np.all(served.runner.ring.header["rows_used"] == 0)
