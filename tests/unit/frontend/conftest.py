from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from blink_persistent.frontend.grant import Grant
from blink_persistent.frontend.session import Bells, RingSession
from blink_persistent.testing.scripted_shape import ScriptedShape
from blink_persistent.testing.threaded_ring import ThreadedRing
from blink_server.backend import SessionLimits

OpenSession = Callable[..., RingSession]


@pytest.fixture
def start_ring() -> Iterator[Callable[..., ThreadedRing]]:
    """`start_ring(shape, scheduling=True)`: a ring whose threads end with the test."""
    rings: list[ThreadedRing] = []

    def start(shape: ScriptedShape | None = None, **options: Any) -> ThreadedRing:
        rings.append(ThreadedRing(shape or ScriptedShape(), **options))
        return rings[-1]

    yield start
    for ring in rings:
        ring.close()


@pytest.fixture
async def open_session(start_ring: Any) -> AsyncIterator[OpenSession]:
    """`open_session(ring, range=0, ...)`: a session on it, closed before the ring is."""
    sessions: list[RingSession] = []

    def open_one(
        ring: ThreadedRing, *, range: int = 0, max_queue: int = 4096, bell: int | None = None
    ) -> RingSession:
        harness = ring.harness
        shape = harness.shape
        limits = SessionLimits(
            context_length=shape.context_length,
            vocabulary_size=shape.vocabulary_size,
            eos_token_ids=(shape.eos_token_id,),
        )
        bells = Bells(harness.doorbell, harness.bells[range] if bell is None else bell)
        session = RingSession(
            harness.ring,
            Grant(
                range,
                limits,
                max_queue,
                max_rows=8,
                kv_blocks=1024,
                kv_block_tokens=16,
                graphs=shape.grid.keys,
            ),
            bells,
            detach=lambda: None,
        )
        sessions.append(session)
        return session

    yield open_one
    for session in sessions:
        await session.close()
