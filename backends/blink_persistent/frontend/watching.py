"""What a ring shows to those who only watch: its scheduler's counters, and its slots."""

from __future__ import annotations

import numpy as np

from blink_persistent.frontend.grant import Grant
from blink_persistent.graph_grid import PHASES
from blink_persistent.ring import Ring, SlotState
from blink_server.backend import GraphLaunches, SchedulerStats, SlotTable

_STATE_SHIFT, _STATE = np.uint64(32), np.uint64(0xFF)
_LOW_HALF = np.uint64(0xFFFFFFFF)


def scheduler_stats(ring: Ring, grant: Grant) -> SchedulerStats:
    """The header's words as of now; each is read on its own."""
    launches = ring.header["graph_launches"][0][: len(grant.graphs)].tolist()
    return SchedulerStats(
        rows=grant.max_rows,
        rows_used=ring.field("rows_used"),
        waiting=ring.field("waiting"),
        kv_usage=ring.field("blocks_used") / grant.kv_blocks,
        kv_blocks=grant.kv_blocks,
        kv_block_tokens=grant.kv_block_tokens,
        steps=ring.field("steps"),
        decode_launches=ring.field("decode_launches"),
        prefill_launches=ring.field("prefill_launches"),
        mixed_launches=ring.field("mixed_launches"),
        tail_launches=ring.field("tail_launches"),
        launch_retries=ring.field("launch_retries"),
        preemptions=ring.field("preemptions"),
        parks=ring.field("parks"),
        completions=ring.field("completions"),
        prompt_tokens=ring.field("prompt_tokens"),
        generated_tokens=ring.field("generated_tokens"),
        gaps=ring.field("gaps"),
        gap_seconds=ring.field("gap_ns") / 1e9,
        agent_turns=ring.field("agent_turns"),
        agent_reads=ring.field("agent_reads"),
        agent_read_bytes=ring.field("agent_read_bytes"),
        agent_writes=ring.field("agent_writes"),
        agent_written_bytes=ring.field("agent_written_bytes"),
        agent_reconnections=ring.field("agent_reconnections"),
        graphs=tuple(
            GraphLaunches(
                PHASES[key.phase], key.sequences, key.tokens, launches=count, rows=key.rows
            )
            for key, count in zip(grant.graphs, launches, strict=False)
        ),
    )


def slot_table(ring: Ring) -> SlotTable:
    """The statuses of all ranges as of now; each slot's is read on its own."""
    status = np.empty((ring.slot_count, 2), np.uint64)
    ring.atomic.read_statuses(0, status)
    words = status[:, 1]
    states = (words >> _STATE_SHIFT & _STATE).astype(np.uint8)
    # The scheduler's clock: on a GPU it is not this machine's, but the header says its time.
    now = ring.field("heartbeat_ns")
    claimed = ring.timings["claimed_ns"].astype(np.int64)
    ages = np.maximum(now - claimed, 0) / 1e9
    return SlotTable(
        states=states,
        tickets=(status[:, 0] & _LOW_HALF).astype(np.uint32),
        generated=(words & _LOW_HALF).astype(np.uint32),
        ages=np.where(states == SlotState.EMPTY, 0.0, ages),
        slots_per_range=ring.slots_per_range,
    )
