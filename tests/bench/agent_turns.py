"""What an agent's turn costs, and what it moves: `python tests/bench/agent_turns.py`.

A scripted ring in this machine's memory; N requests decode, and after each step the agent makes
one turn, in which every one of them has one more token. Counted are the turn's seconds (one core,
median) and, over a simulated network, READs, WRITEs and bytes for each token and request: what a
transport with one-sided operations would do. The requests' places in the arenas are 6 KiB apart.
Prints the machine, then one JSON line for each N, with little and with much read over.
"""

from __future__ import annotations

import json
import random
import statistics
import time

from machine import describe_machine

from blink_persistent.agent.memory_port import MemoryPort
from blink_persistent.agent.relay import Relay
from blink_persistent.testing.plain_frontend import PlainFrontend
from blink_persistent.testing.scripted_harness import ScriptedHarness
from blink_persistent.testing.scripted_request import ScriptedRequest
from blink_persistent.testing.scripted_shape import ScriptedShape
from blink_persistent.testing.simulated_port import SimulatedPort

TOKENS = 200


def step(harness: ScriptedHarness) -> None:
    """One step of the engine, and the scheduler's passes around it."""
    while harness.flight is None:
        harness.run_pass()
    harness.finish_step()
    harness.run_pass()


def measure(rows: int, cheap_gap: int, slots: int = 4096) -> dict[str, float]:
    """N = rows; the ring has `slots`; gaps up to `cheap_gap` bytes are read over."""
    shape = ScriptedShape(
        ranges=slots // 256, max_rows=rows, max_sequences=8, max_prefill_tokens=512,
        context_length=256, block_size=16, block_count=rows * 17 + 1,
    )  # fmt: skip
    with ScriptedHarness(shape, trace_capacity=0) as harness:
        memory = MemoryPort(harness.ring._memory, first_range=0, ranges=shape.ranges)
        port = SimulatedPort(memory, harness.ring, chance=random.Random(1))
        memory.cheap_gap = port.cheap_gap = cheap_gap
        relay = Relay(port, lambda _range: None)
        workers = PlainFrontend(relay.mirror.ring, shape)
        for slot in range(rows):
            prompt = (3 + slot % 90, 5, 7)
            workers.submit(slot, ScriptedRequest(prompt, max_tokens=TOKENS, ignore_eos=True))
        relay.turn()
        sent = port.traffic.writes
        while min(len(workers.output(slot)) for slot in range(rows)) < 2:
            step(harness)
            relay.turn()
        before, seconds, read_bytes = port.traffic.reads, [], port.traffic.read_bytes
        steps = 100
        for _ in range(steps):
            step(harness)
            relay.turn(with_header=False)
        reads = port.traffic.reads - before
        read_bytes = port.traffic.read_bytes - read_bytes
        relay._reader.port = relay._forwarder.port = memory
        for _ in range(50):
            step(harness)
            start = time.perf_counter()
            relay.turn(with_header=False)
            seconds.append(time.perf_counter() - start)
        relay.close()
    return {
        "requests": rows,
        "cheap_gap": cheap_gap,
        "turn_us": round(1e6 * statistics.median(seconds), 1),
        "writes_per_request": sent / rows,
        "reads_per_token": reads / steps / rows,
        "read_bytes_per_token": read_bytes / steps / rows,
    }


if __name__ == "__main__":
    print(json.dumps(describe_machine()))
    for cheap_gap in (64, 16384):
        for rows in (1, 32, 256):
            print(json.dumps(measure(rows, cheap_gap)))
