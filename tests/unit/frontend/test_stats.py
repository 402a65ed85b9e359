"""What a session says of its scheduler."""

from __future__ import annotations

from typing import Any

from blink_persistent.testing.scripted_session import generate, request, until_idle


async def test_counters_count_what_was_done(start_ring: Any, open_session: Any) -> None:
    session = open_session(start_ring())
    tokens, _ = await generate(session, request([1, 2, 3], max_tokens=5))
    await until_idle(session)
    stats = session.stats()
    assert stats.steps == len(tokens) == 5
    assert (stats.prefill_launches, stats.decode_launches) == (1, 4)
    assert (stats.rows_used, stats.waiting, stats.kv_usage) == (0, 0, 0.0)
    assert stats.rows == 8


async def test_a_closed_session_says_nothing(start_ring: Any, open_session: Any) -> None:
    session = open_session(start_ring())
    await session.close()
    assert session.stats() is None
