"""What can be seen of a scheduler: outcomes of passes, trace events, a slot's status."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from blink_persistent.ring import Command as Command
from blink_persistent.ring import Reason, SlotState


class Outcome(IntEnum):
    """What a pass did (`Outcome` in scheduler.h)."""

    BUSY = 0
    PROGRESS = 1
    IDLE = 2
    RELAUNCH = 3
    PARK = 4
    STOP = 5
    FAILED = 6


class TraceKind(IntEnum):
    """Kinds of trace events (`TraceKind` in scheduler_state.h)."""

    CLAIM = 1  # slot, ticket
    ADMIT = 2  # slot, row
    LAUNCH = 3  # graph, sequences, tokens; of a mixed step those of its prefill
    END = 4  # slot, ticket, reason
    PREEMPT = 5  # slot, ticket
    MOVE = 6  # from row, to row
    RELAUNCH = 7


class TraceEvent(NamedTuple):
    """One thing the scheduler did; what a, b and c are depends on the kind."""

    kind: TraceKind
    a: int
    b: int
    c: int


class Launch(NamedTuple):
    """A graph that the engine is to run."""

    graph: int
    phase: int
    sequences: int
    tokens: int
    rows: int


class Status(NamedTuple):
    """A slot's status as read, not yet accepted by anyone."""

    ticket: int
    epoch: int
    generated: int
    state: SlotState
    reason: Reason
    ticket_byte: int

    def belongs_to(self, ticket: int, epoch: int) -> bool:
        """The reader's rule: ticket, epoch and the byte in the state word must all be his."""
        return (self.ticket, self.epoch, self.ticket_byte) == (ticket, epoch, ticket % 256)
