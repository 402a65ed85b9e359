"""What a session says of its scheduler."""

from __future__ import annotations

from typing import Any

import numpy as np

from blink_persistent.frontend.watching import slot_table
from blink_persistent.ring import SlotState
from blink_persistent.testing.scripted_harness import ScriptedHarness
from blink_persistent.testing.scripted_request import ScriptedRequest
from blink_persistent.testing.scripted_session import generate, request, until_idle
from blink_persistent.testing.scripted_shape import ScriptedShape


async def test_counters_count_what_was_done(start_ring: Any, open_session: Any) -> None:
    session = open_session(start_ring())
    tokens, _ = await generate(session, request([1, 2, 3], max_tokens=5))
    await until_idle(session)
    stats = session.stats()
    assert stats.steps == len(tokens) == 5
    assert (stats.prefill_launches, stats.decode_launches) == (1, 4)
    assert (stats.rows_used, stats.waiting, stats.kv_usage) == (0, 0, 0.0)
    assert stats.rows == 8
    assert (stats.gaps, stats.parks) == (4, 0)
    assert stats.gap_seconds > 0


async def test_launches_are_told_by_graph(start_ring: Any, open_session: Any) -> None:
    session = open_session(start_ring())
    await generate(session, request([1, 2, 3], max_tokens=5))
    await until_idle(session)
    launched = {
        (graph.phase, graph.sequences, graph.tokens): graph.launches
        for graph in session.stats().graphs
    }
    assert len(launched) == len(session.stats().graphs) > 2
    smallest = min(key for key in launched if key[0] == "prefill")
    assert launched.pop(("decode", 1, 1)) == 4
    assert launched.pop(smallest) == 1
    assert not any(launched.values())


def test_slots_show_state_ticket_tokens_and_age() -> None:
    with ScriptedHarness(ScriptedShape(ranges=2)) as harness:
        per_range = harness.ring.slots_per_range
        harness.submit(per_range + 3, 7, ScriptedRequest((5, 6, 7), max_tokens=2))
        assert not slot_table(harness.ring).states.any()
        seen = []
        while SlotState.DECODE_COMPLETED not in seen:
            harness.run_pass()
            table = slot_table(harness.ring)
            seen.append(int(table.states[per_range + 3]))
            harness.finish_step() if harness.flight else None
        assert seen == [2, 3, 5]
        assert (table.tickets[per_range + 3], table.generated[per_range + 3]) == (7, 2)
        assert (table.slots_per_range, len(table.ages)) == (per_range, 2 * per_range)
        claimed = harness.ring.timings["claimed_ns"][per_range + 3]
        heartbeat = harness.ring.field("heartbeat_ns")
        assert table.ages[per_range + 3] == (max(heartbeat, claimed) - claimed) / 1e9
        assert np.flatnonzero(table.states).tolist() == [per_range + 3]


async def test_a_closed_session_says_nothing(start_ring: Any, open_session: Any) -> None:
    session = open_session(start_ring())
    await session.close()
    assert session.stats() is None
    assert session.slots() is None
