"""What a backend's scheduler and ring say of themselves: part of the contract in
`blink_server.backend`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class GraphLaunches:
    """How often one graph of the grid was launched, modulo 2^32.

    `phase`: "decode", "prefill", or "mixed", a prefill beside a decode step of `rows`.
    """

    phase: str
    sequences: int  # decode: rows
    tokens: int  # decode: rows
    launches: int
    rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStats:
    """What a version's scheduler says of itself now; counters count from its start.

    A gap is the time from the end of a step, as the scheduler notices it, to the launch of the
    step that follows it at once. What begins with `agent` is of the agent through which this
    session reaches the ring, 0 where it needs none.
    """

    rows: int  # requests that one decode step can serve
    rows_used: int
    waiting: int  # claimed requests without a row
    kv_usage: float  # share of the KV memory in use, 0 to 1
    kv_blocks: int = 0  # that requests can have
    kv_block_tokens: int = 0
    steps: int
    decode_launches: int
    prefill_launches: int
    mixed_launches: int = 0
    tail_launches: int
    launch_retries: int
    preemptions: int
    parks: int = 0
    completions: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    gaps: int = 0
    gap_seconds: float = 0.0
    agent_turns: int = 0
    agent_reads: int = 0
    agent_read_bytes: int = 0
    agent_writes: int = 0
    agent_written_bytes: int = 0
    agent_reconnections: int = 0
    graphs: tuple[GraphLaunches, ...] = ()


SLOT_STATES = (
    "EMPTY",
    "PREFILL_PENDING",
    "PREFILL_PROCESSING",
    "DECODE_PROCESSING",
    "DECODE_PAUSED",
    "DECODE_COMPLETED",
)
"""The states of a slot of a ring; a `SlotTable` has their numbers."""


@dataclass(frozen=True, slots=True)
class SlotTable:
    """The slots of a version's ring as of now, for whoever watches; it says nothing of texts.

    states: uint8 [slots], places in `SLOT_STATES`. tickets, generated: uint32 [slots].
    ages: float64 [slots], seconds since the slot's request was claimed; 0 where it has none.
    slots_per_range: so many slots in a row belong to one frontend.
    """

    states: npt.NDArray[np.uint8]
    tickets: npt.NDArray[np.uint32]
    generated: npt.NDArray[np.uint32]
    ages: npt.NDArray[np.float64]
    slots_per_range: int
