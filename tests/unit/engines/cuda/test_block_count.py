"""How many KV blocks a version gets from its share of the device's memory."""

from __future__ import annotations

import pytest

from blink_persistent.engines.cuda.architectures import ARCHITECTURES
from blink_persistent.engines.cuda.memory import choose_block_count, fixed_bytes, kv_entry_bytes
from blink_persistent.engines.cuda.options import CudaOptions
from blink_persistent.graph_grid import default_grid
from blink_server.errors import Unavailable

SHAPE = ARCHITECTURES["llama-3-8b"]
GRID = default_grid(64, 2048, max_sequences=8)
BLOCK_BYTES = 64 * kv_entry_bytes(SHAPE)


def options(block_count: int | None) -> CudaOptions:
    return CudaOptions(architecture=SHAPE, file=None, block_size=64, block_count=block_count)


def budget(blocks: int) -> int:
    """Memory for so many blocks, and one byte short of one more."""
    return fixed_bytes(options(None), GRID) + (blocks + 1) * BLOCK_BYTES - 1


def test_all_memory_that_is_left_becomes_blocks() -> None:
    assert choose_block_count(options(None), GRID, 4096, budget(1000)) == 1000


def test_blocks_that_are_asked_for_are_given_or_refused_with_the_numbers() -> None:
    assert choose_block_count(options(400), GRID, 4096, budget(400)) == 400
    needed = fixed_bytes(options(None), GRID) + 401 * BLOCK_BYTES
    with pytest.raises(Unavailable, match=f"memory: {needed} bytes"):
        choose_block_count(options(401), GRID, 4096, budget(400))


def test_one_request_of_full_length_must_fit() -> None:
    assert choose_block_count(options(None), GRID, 4096, budget(65)) == 65
    with pytest.raises(Unavailable, match="memory"):
        choose_block_count(options(None), GRID, 4096, budget(64))
    with pytest.raises(Unavailable, match="memory"):
        choose_block_count(options(None), GRID, 4096, 1)
