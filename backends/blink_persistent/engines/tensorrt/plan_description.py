"""What config.json says of a plan: for which machine it was built, and what it can do.

A plan is TensorRT's own format and says nothing that can be read without the library, a GPU and
the seconds that loading takes. So `build` writes this beside it, under "engine.plan".
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from blink_persistent.graph_grid import DECODE, PREFILL, GraphGrid, GraphKey
from blink_server.importers.checkpoint import Architecture

LAYOUT = 1
"""Of inputs and outputs of `network.py` and of the plugin's fields: another one is another plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRange:
    """What one optimization profile holds: up to so many rows or sequences, and tokens."""

    sequences: int
    tokens: int

    def holds(self, key: GraphKey) -> bool:
        return key.sequences <= self.sequences and key.tokens <= self.tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDescription:
    """A plan. `target`: as "sm_89". `attention`: "plugin" or "native".

    `aliased`: see `PluginState`. `blocks`: of KV memory, the most that the plan takes. `grid`: a
    hash of the grid that it was built for, which may become any within `decode` and `prefill`.
    """

    flavour: str
    version: str
    target: str
    attention: str
    aliased: bool
    dtype: str
    layout: int
    block_size: int
    max_blocks: int
    blocks: int
    decode: StepRange
    prefill: StepRange
    grid: str
    file_bytes: int
    architecture: Architecture

    def to_json(self) -> dict[str, Any]:
        """What `from_json` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> PlanDescription:
        """A document that has passed its schema."""
        architecture = dict(document["architecture"])
        architecture["rope_divisors"] = tuple(architecture["rope_divisors"])
        return cls(
            **{
                **document,
                "decode": StepRange(**document["decode"]),
                "prefill": StepRange(**document["prefill"]),
                "architecture": Architecture(**architecture),
            }
        )

    def uncovered(self, grid: GraphGrid) -> Iterator[GraphKey]:
        """Keys that no profile holds."""
        ranges = {DECODE: self.decode, PREFILL: self.prefill}
        for key in grid.keys:
            if key.phase not in ranges or not ranges[key.phase].holds(key):
                yield key


def indistinct(grid: GraphGrid) -> Sequence[GraphKey]:
    """Prefill keys that a plan could not tell from decode ones: as many sequences as tokens."""
    return [key for key in grid.keys if key.phase == PREFILL and key.tokens <= key.sequences]


def grid_hash(grid: GraphGrid) -> str:
    """Of all keys."""
    keys = repr([(key.phase, key.sequences, key.tokens, key.rows) for key in grid.keys])
    return hashlib.sha256(keys.encode()).hexdigest()[:16]


def capability_of(target: str) -> tuple[int, int]:
    """Compute capability of "sm_89" and its like."""
    number = int(target.removeprefix("sm_"))
    return number // 10, number % 10
