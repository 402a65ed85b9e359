"""Follows a scheduler's trace and checks each launched step against it.

It holds, on its own, what the scheduler must hold: who waits in which order, who has which row,
whose prompt is computed, for how long a prompt rows that decode wait. Every check raises
AssertionError naming what was broken.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from blink_persistent.graph_grid import DECODE, MIXED, PREFILL, GraphKey
from blink_persistent.testing.observed import TraceEvent, TraceKind
from blink_persistent.testing.scripted_harness import ScriptedHarness


class StepAudit:
    """Audits one harness; call `after_pass` after each of its passes.

    `in_flight` are the slots that the running step serves, `rows` maps rows to slots.
    """

    def __init__(self, harness: ScriptedHarness) -> None:
        self._harness = harness
        self._shape = harness.shape
        self._buffers: list[dict[str, Any]] = [harness.engine.arrays(phase) for phase in (0, 1)]
        self._waiting: dict[int, tuple[int, int]] = {}  # slot -> (priority, order of claim)
        self._order: dict[int, int] = {}
        self._claims = 0
        self.rows: dict[int, int] = {}
        self._decoding: set[int] = set()
        self._computed: dict[int, int] = {}  # slot -> tokens whose KV entries exist
        self._newcomers: set[int] = set()  # slots that got a row since the last launch
        self._waited = 0  # prompt tokens launched since the last step of rows that decode
        self.in_flight: tuple[int, ...] = ()
        self.launches = [0, 0, 0]
        self.seen: dict[TraceKind, int] = dict.fromkeys(TraceKind, 0)

    def after_pass(self) -> None:
        """Follow what the pass did; check the step it launched, if any."""
        for event in self._harness.trace():
            self.seen[event.kind] += 1
            self._follow(event)
        header_rows = self._harness.ring.field("rows_used")
        assert header_rows == len(self.rows), f"{header_rows} rows used, traced {self.rows}"

    def _follow(self, event: TraceEvent) -> None:
        slot = event.a
        match event.kind:
            case TraceKind.CLAIM:
                self._claims += 1
                self._order[slot] = self._claims
                self._wait(slot)
            case TraceKind.ADMIT:
                self._admit(slot, event.b)
            case TraceKind.PREEMPT:
                self._leave_row(slot)
                self._wait(slot)
            case TraceKind.END:
                if self._waiting.pop(slot, None) is None:
                    self._leave_row(slot)
            case TraceKind.MOVE:
                assert self._shape.rows_movable, "a row moved that must not"
                assert event.b not in self.rows, f"row {event.a} moved onto a busy row {event.b}"
                self.rows[event.b] = self.rows.pop(event.a)
            case TraceKind.LAUNCH:
                self._check_launch(event)

    def _wait(self, slot: int) -> None:
        priority = int(self._harness.ring.records["priority"][slot])
        self._waiting[slot] = (priority, self._order[slot])

    def _leave_row(self, slot: int) -> None:
        (row,) = [row for row, holder in self.rows.items() if holder == slot]
        del self.rows[row]
        self._decoding.discard(slot)

    def _admit(self, slot: int, row: int) -> None:
        first = min(self._waiting.values())
        assert self._waiting.pop(slot) == first, f"slot {slot} overtook one claimed before it"
        free = next(r for r in range(self._shape.max_rows) if r not in self.rows)
        assert row == free, f"slot {slot} got row {row}, the lowest free one is {free}"
        self.rows[row] = slot
        self._newcomers.add(slot)

    def _check_launch(self, event: TraceEvent) -> None:
        key = self._shape.grid.keys[event.a]
        assert key.sequences >= event.b, f"{event.b} sequences in {key}"
        assert key.tokens >= event.c, f"{event.c} tokens in {key}"
        if self._shape.rows_movable:
            assert sorted(self.rows) == list(range(len(self.rows))), f"holes in rows {self.rows}"
        self.launches[key.phase] += 1
        self._check_delay(key, event.c)
        self.in_flight = ()
        for part in key.parts:
            if part.phase == DECODE:
                self._check_decode(part)
            else:
                self._check_prefill(part, event.b)
        self._newcomers.clear()

    def _check_delay(self, key: GraphKey, tokens: int) -> None:
        """Rows that decode wait for a chunk at most, and for none that a mixed graph could hold."""
        chunk = self._shape.prefill_chunk or self._shape.max_prefill_tokens
        if key.phase == PREFILL and self._decoding:
            self._waited += tokens
            rows = 1 + max(r for r, slot in self.rows.items() if slot not in self._newcomers)
            for mixed in self._shape.grid.keys:
                assert mixed.tokens < tokens or mixed.rows < rows, f"{mixed} could serve both"
        else:
            self._waited = tokens if key.phase == MIXED else 0
        assert self._waited <= chunk, f"rows wait for {self._waited} prompt tokens"
        if key.phase != PREFILL:
            self._waited = 0

    def _check_decode(self, key: GraphKey) -> None:
        step = self._buffers[DECODE]
        tables = step["block_tables"].reshape(self._shape.max_rows, -1)
        owners: dict[int, int] = {}
        served = {slot for row, slot in self.rows.items() if row < key.sequences}
        assert set() < self._decoding <= served, f"{key} for rows of {self._decoding}"
        for row in range(key.sequences):
            slot = self.rows.get(row)
            if slot is None or slot not in self._decoding:
                assert step["lengths"][row] == 0, f"inactive row {row} has a length"
                assert step["start_positions"][row] == 0, f"inactive row {row} has a start"
                assert tables[row, 0] == 0, f"inactive row {row} has a block"
                continue
            length = self._computed[slot] + 1
            replays = self._shape.deterministic and length < self._tokens(slot)
            assert replays or length == self._tokens(slot), f"slot {slot} decodes at {length}"
            assert step["lengths"][row] == length, f"row {row}: length {step['lengths'][row]}"
            self._computed[slot] = length
            assert step["start_positions"][row] == length - 1
            self._own_blocks(owners, tables[row], slot, length)
        self.in_flight = tuple(sorted(self._decoding))

    def _check_prefill(self, key: GraphKey, sequences: int) -> None:
        step = self._buffers[PREFILL]
        tables = step["block_tables"].reshape(self._shape.max_sequences, -1)
        slots = [self.rows[int(row)] for row in step["rows"][:sequences]]
        assert len(set(slots)) == sequences, "one request twice in a prefill"
        owners: dict[int, int] = {}
        for row, slot in self.rows.items():
            if slot in self._decoding:
                decode_table = self._buffers[DECODE]["block_tables"]
                table = decode_table.reshape(self._shape.max_rows, -1)[row]
                self._own_blocks(owners, table, slot, self._computed[slot])
        for i, slot in enumerate(slots):
            start, length = int(step["start_positions"][i]), int(step["lengths"][i])
            packed = int(step["cu_seqlens"][i + 1] - step["cu_seqlens"][i])
            assert packed == length - start > 0, (
                f"slot {slot}: {packed} tokens for {length - start}"
            )
            total = self._prefill_tokens(slot)
            assert packed > 1 or total == 1 or length < total, "a last chunk of one token"
            self._own_blocks(owners, tables[i], slot, length)
            self._computed[slot] = length
            if length == total:
                self._decoding.add(slot)
        assert not step["lengths"][sequences : key.sequences].any(), "padding has a length"
        self.in_flight += tuple(slots)

    def _prefill_tokens(self, slot: int) -> int:
        if self._shape.deterministic:
            return int(self._harness.ring.records["prompt_length"][slot])
        return self._tokens(slot)

    def _tokens(self, slot: int) -> int:
        generated = self._harness.status(slot).generated
        return int(self._harness.ring.records["prompt_length"][slot]) + generated

    def _own_blocks(
        self, owners: dict[int, int], table: npt.NDArray[np.int32], slot: int, tokens: int
    ) -> None:
        """Claims the blocks that `tokens` tokens lie in for `slot`; none may have an owner."""
        if not self._shape.rows_movable:
            return
        for block in table[: -(-tokens // self._shape.block_size)].tolist():
            assert 0 < block < self._shape.block_count, f"slot {slot} uses block {block}"
            assert block not in owners, f"slots {owners[block]} and {slot} share block {block}"
            owners[block] = slot
