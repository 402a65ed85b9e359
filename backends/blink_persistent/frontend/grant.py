"""What a runner grants a frontend, and what the ring's header says of its scheduler."""

from __future__ import annotations

from dataclasses import dataclass

from blink_persistent.ring import Ring
from blink_server.backend import SchedulerStats, SessionLimits


@dataclass(frozen=True, slots=True)
class Grant:
    """What a runner grants a frontend: a range, and what holds for the whole version."""

    range: int
    limits: SessionLimits
    max_queue: int  # requests of all ranges that may wait
    max_rows: int
    kv_blocks: int  # blocks that requests can have; without movable rows one a row


def scheduler_stats(ring: Ring, grant: Grant) -> SchedulerStats:
    """The header's words as of now; each is read on its own."""
    return SchedulerStats(
        rows=grant.max_rows,
        rows_used=ring.field("rows_used"),
        waiting=ring.field("waiting"),
        kv_usage=ring.field("blocks_used") / grant.kv_blocks,
        steps=ring.field("steps"),
        decode_launches=ring.field("decode_launches"),
        prefill_launches=ring.field("prefill_launches"),
        tail_launches=ring.field("tail_launches"),
        launch_retries=ring.field("launch_retries"),
        preemptions=ring.field("preemptions"),
    )
