"""What the RDMA port puts on the wire: `tests/rdma/run.sh --run tests/bench/rdma_counts.py`.

Counts, not times: a guest's devices are software. N requests decode in a ring of 4,096 slots, their
places in the arenas 6 KiB apart; after each step the agent makes one turn, in which every one of
them has one more token. Counted are work requests, chains (one doorbell of the device each), and
bytes; beside them what the paper's scheme (section 4.4) would need: a READ of the whole table of
4,096 x 16 bytes each cycle, a READ for each slot with news, and two WRITEs a request (prompt with
record, state). `--fake` counts on verbs without a device: the same numbers, anywhere.
Prints one JSON line for each N.
"""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import astuple, dataclass, replace
from typing import Any

from agent_turns import step

from blink_persistent.agent.relay import Relay
from blink_persistent.testing.plain_frontend import PlainFrontend
from blink_persistent.testing.scripted_harness import ScriptedHarness
from blink_persistent.testing.scripted_request import ScriptedRequest
from blink_persistent.testing.scripted_shape import ScriptedShape
from rdma_frontend.device import Device
from rdma_frontend.host import HostEnd, HostMemory
from rdma_frontend.port import RdmaPort
from rdma_frontend.testing.fake_verbs import use_fake_verbs
from rdma_frontend.testing.guest import FRONTEND_DEVICE, HOST_DEVICE
from rdma_frontend.verbs import verbs

SLOTS, TOKENS, STEPS = 4096, 60, 40
TABLE_BYTES = SLOTS * 16


@dataclass
class Counts:
    reads: int = 0
    read_bytes: int = 0
    writes: int = 0
    written_bytes: int = 0
    chains: int = 0

    def since(self, before: Counts) -> Counts:
        pairs = zip(astuple(self), astuple(before), strict=True)
        return Counts(*(now - then for now, then in pairs))


class CountingPort(RdmaPort):
    """Counts its work requests by kind."""

    def __init__(self, *given: Any, **named: Any) -> None:
        self.counts = Counts()
        super().__init__(*given, **named)

    def _queue(self, operation: int, here: tuple[int, int, int], key: int, there: int) -> None:
        counts = self.counts
        if operation == constants.IBV_WR_RDMA_READ:
            counts.reads += 1
            counts.read_bytes += here[1]
        else:
            counts.writes += 1
            counts.written_bytes += here[1]
        super()._queue(operation, here, key, there)

    def _start(self) -> None:
        self.counts.chains += bool(self._pending)
        super()._start()


def measure(rows: int) -> dict[str, Any]:
    """N = rows."""
    shape = ScriptedShape(
        ranges=SLOTS // 256, max_rows=rows, max_sequences=8, max_prefill_tokens=512,
        context_length=256, block_size=16, block_count=rows * 17 + 1,
    )  # fmt: skip
    with ScriptedHarness(shape, trace_capacity=0) as harness:
        end = HostEnd(Device(HOST_DEVICE), HostMemory(harness.ring_fd, first_range=0, ranges=16))
        port = CountingPort(
            Device(FRONTEND_DEVICE), end.renew(), end.connect, first_range=0, ranges=16
        )
        relay = Relay(port, lambda _range: None)
        workers = PlainFrontend(relay.mirror.ring, shape)
        for slot in range(rows):
            prompt = (3 + slot % 90, 5, 7)
            workers.submit(slot, ScriptedRequest(prompt, max_tokens=TOKENS, ignore_eos=True))
        before = replace(port.counts)
        relay._forwarder.forward()
        submitted = port.counts.since(before)
        while min(len(workers.output(slot)) for slot in range(rows)) < 2:
            step(harness)
            relay.turn(with_header=False)
        before = replace(port.counts)
        for _ in range(STEPS):
            step(harness)
            relay.turn(with_header=False)
        fetched = port.counts.since(before)
        relay.close()
        end.close()
    tokens = STEPS * rows
    return {
        "requests": rows,
        "writes_per_request": round(submitted.writes / rows, 3),
        "write_bytes_per_request": round(submitted.written_bytes / rows, 1),
        "chains_per_burst": submitted.chains,
        "reads_per_token": round(fetched.reads / tokens, 4),
        "read_bytes_per_token": round(fetched.read_bytes / tokens, 1),
        "chains_per_token": round(fetched.chains / tokens, 4),
        "paper_writes_per_request": 2.0,
        "paper_reads_per_token": round((1 + rows) / rows, 4),
        "paper_read_bytes_per_token": round(TABLE_BYTES / rows + 4, 1),
    }


if __name__ == "__main__":
    with use_fake_verbs() if "--fake" in sys.argv else contextlib.nullcontext() as fake:
        constants = fake.e if fake is not None else verbs().e
        for rows in (1, 32, 256):
            print(json.dumps(measure(rows)), flush=True)
