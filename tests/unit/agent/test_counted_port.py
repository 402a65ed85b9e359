"""What an agent does, as its mirror's header tells it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from blink_persistent.agent.agent import Agent
from blink_persistent.agent.counted_port import AgentCounts, CountedPort
from blink_persistent.agent.memory_port import MemoryPort
from blink_persistent.agent.port import Region, Span
from blink_persistent.testing.agent_thread import lease_limits
from blink_persistent.testing.plain_frontend import PlainFrontend
from blink_persistent.testing.scripted_harness import ScriptedHarness
from blink_persistent.testing.scripted_request import ScriptedRequest
from blink_persistent.testing.scripted_shape import ScriptedShape

SHAPE = ScriptedShape()
NAMES = list(vars(AgentCounts()))


def port_to(harness: ScriptedHarness) -> MemoryPort:
    return MemoryPort(harness.ring._memory, first_range=0, ranges=SHAPE.ranges)


def test_spans_and_bytes_are_counted() -> None:
    with ScriptedHarness(SHAPE) as harness:
        counts = AgentCounts()
        port = CountedPort(port_to(harness), counts)
        port.read([Span(Region.HEADER, 0, 64), Span(Region.STATUS, 16, 32)])
        port.write(Region.WORDS, 0, np.zeros(16, np.uint8))
        port.post()
        assert (counts.agent_reads, counts.agent_read_bytes) == (2, 96)
        assert (counts.agent_writes, counts.agent_written_bytes) == (1, 16)
        counts.show(harness.ring)
        assert [harness.ring.field(name) for name in NAMES] == [0, 2, 96, 1, 16, 0]
        port.close()


def test_an_agent_shows_what_it_did_to_its_workers_alone(tmp_path: Path) -> None:
    with ScriptedHarness(SHAPE) as harness:
        agent = Agent(port_to(harness), tmp_path / "workers.sock", lease_limits(SHAPE))
        mirror = agent._relay.mirror.ring

        def shown() -> dict[str, int]:
            return {name: mirror.field(name) for name in NAMES}

        agent.turn()
        idle = shown()
        assert idle["agent_turns"] == 1
        PlainFrontend(mirror, SHAPE).submit(0, ScriptedRequest(prompt=(1, 2, 3), max_tokens=2))
        agent.turn()
        busy = shown()
        assert busy["agent_turns"] == 2
        assert busy["agent_writes"] >= idle["agent_writes"] + 3  # prompt, record, words
        assert busy["agent_reads"] > idle["agent_reads"]
        agent.disconnect()
        agent.resume(port_to(harness))
        agent.turn()
        assert shown()["agent_reconnections"] == 1
        assert [harness.ring.field(name) for name in NAMES] == [0] * len(NAMES)
        agent.close()
