"""What a runner grants a frontend."""

from __future__ import annotations

from dataclasses import dataclass

from blink_persistent.graph_grid import GraphKey
from blink_server.backend import SessionLimits


@dataclass(frozen=True, slots=True)
class Grant:
    """What a runner grants a frontend: a range, and what holds for the whole version."""

    range: int
    limits: SessionLimits
    max_queue: int  # requests of all ranges that may wait
    max_rows: int
    kv_blocks: int  # blocks that requests can have; without movable rows one a row
    kv_block_tokens: int
    graphs: tuple[GraphKey, ...]  # in the order of the grid
