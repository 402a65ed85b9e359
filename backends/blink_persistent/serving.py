"""What all runners know of a ring: its size, what its owners must know, when it is drained."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from blink_persistent import _native
from blink_persistent.engines import Engine, EngineShape
from blink_persistent.ring import Ring, SlotState
from blink_server.backend import ModelVersion

_FULL_LENGTH_REQUESTS = 64  # of a range: what its arenas hold at full context length
_AUX_WORDS = 64 * 1024  # stop ids and biases of a range
_WORDS_PER_MIB = (1 << 20) // 4


def ring_shape(limits: Mapping[str, Any]) -> _native.RingShape:
    """The sizes of a version's ring; `limits` are config.json's."""
    arena = _FULL_LENGTH_REQUESTS * limits["context_length"]
    return _native.RingShape(
        ranges=limits["slots"] // _native.RANGE_GRANULE,
        slots_per_range=_native.RANGE_GRANULE,
        prompt_words=arena,
        output_words=2 * arena,
        aux_words=_AUX_WORDS + limits["grammar_mib"] * _WORDS_PER_MIB,
    )


def gpu_bytes(engine: Engine, version: ModelVersion) -> int:
    """What must be free of a GPU's memory to load a version there: the engine's, and the ring."""
    return engine.estimate(version) + ring_shape(version.config["limits"]).total_bytes


def lease_limits(limits: Mapping[str, Any], shape: EngineShape) -> dict[str, Any]:
    """What the owner of a range must know of the version."""
    return {
        "context_length": shape.context_length,
        "vocabulary_size": shape.vocabulary_size,
        "eos_token_ids": list(shape.eos_token_ids),
        "max_queue": limits["max_queue"],
        "max_rows": shape.grid.max_rows,
        "graphs": [[key.phase, key.sequences, key.tokens, key.rows] for key in shape.grid.keys],
        "kv_blocks": shape.block_count - 1 if shape.rows_movable else shape.grid.max_rows,
        "kv_block_tokens": shape.block_size,
    }


def is_drained(ring: Ring) -> bool:
    """Whether it is closed: it accepts nothing, and every slot is {submit, EMPTY}."""
    atomic = ring.atomic
    if atomic.accepting():
        return False
    status = np.empty((ring.slot_count, 2), np.uint64)
    atomic.read_statuses(0, status)
    if (status[:, 1] >> np.uint64(32) & np.uint64(0xFF) != SlotState.EMPTY).any():
        return False
    tickets = (status[:, 0] & np.uint64(0xFFFFFFFF)).tolist()
    return all(atomic.submitted(slot) == ticket for slot, ticket in enumerate(tickets))


def resident_bytes() -> int:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def new_eventfd() -> int:
    """An eventfd that blocks nobody and is not inherited."""
    return os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
