"""Parts of a step, and the scheduler's step buffers that say them, in numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

STALE_TOKEN = 1  # what lies in the token buffer beyond the step's tokens

Inputs = Mapping[str, npt.NDArray[np.int32]]


@dataclass(frozen=True, slots=True)
class Part:
    """Some tokens of one request: its block table, how many entries it has, what comes next."""

    blocks: tuple[int, ...]
    start: int
    token_ids: tuple[int, ...]


INACTIVE = Part((0,), 0, ())


def decode_inputs(parts: Sequence[Part], rows: int, max_blocks: int) -> Inputs:
    """A decode step of `rows` rows; a part without tokens is an inactive row."""
    inputs = _common(parts, rows, max_blocks)
    token_ids = np.zeros(rows, np.int32)
    for row, part in enumerate(parts):
        token_ids[row : row + len(part.token_ids)] = part.token_ids
    return {**inputs, "token_ids": token_ids, "cu_seqlens": np.arange(rows + 1, dtype=np.int32)}


def prefill_inputs(parts: Sequence[Part], sequences: int, tokens: int, max_blocks: int) -> Inputs:
    """A prefill step of the key (sequences, tokens)."""
    inputs = _common(parts, sequences, max_blocks)
    token_ids = np.full(tokens, STALE_TOKEN, np.int32)
    packed = [token for part in parts for token in part.token_ids]
    token_ids[: len(packed)] = packed
    ends = np.full(sequences + 1, len(packed), np.int32)
    ends[: len(parts) + 1] = np.cumsum([0, *(len(part.token_ids) for part in parts)])
    return {**inputs, "token_ids": token_ids, "cu_seqlens": ends}


def _common(parts: Sequence[Part], n: int, max_blocks: int) -> dict[str, Any]:
    inputs = {
        "start_positions": np.zeros(n, np.int32),
        "lengths": np.zeros(n, np.int32),
        "block_tables": np.zeros((n, max_blocks), np.int32),
    }
    for i, part in enumerate(parts):
        if part.token_ids:
            inputs["start_positions"][i] = part.start
            inputs["lengths"][i] = part.start + len(part.token_ids)
            inputs["block_tables"][i, : len(part.blocks)] = part.blocks
    return inputs
