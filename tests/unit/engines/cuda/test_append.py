"""Rotated keys and values reach their KV entries, and inactive tokens reach none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from blink_persistent.engines.cuda.kernels.in_triton import append

Kinds = dict[str, Callable[[Any], Any]]
KV_HEADS, HEAD_DIM, BLOCK_SIZE = 2, 24, 16
SHAPE = {
    **{"KV_HEADS": KV_HEADS, "HEAD_DIM": HEAD_DIM, "BLOCK_SIZE": BLOCK_SIZE},
    **{"DIM_TILE": 32, "CHAINED": False},
}
TABLES = torch.tensor([[7, 3, 5], [2, 9, 8], [1, 6, 4]], dtype=torch.int32)


@pytest.fixture(autouse=True)
def _interpreted(kernel_kinds: Kinds) -> None:
    if "fused" not in kernel_kinds:
        pytest.skip("Triton's interpreter is not used here")


def int32(*values: int) -> Any:
    return torch.tensor(values, dtype=torch.int32)


def pools() -> tuple[Any, Any]:
    return tuple(torch.zeros(10, KV_HEADS, BLOCK_SIZE, HEAD_DIM) for _ in range(2))


def new_entries(tokens: int) -> tuple[Any, Any]:
    torch.manual_seed(3)
    return tuple(torch.randn(tokens, KV_HEADS, HEAD_DIM) for _ in range(2))


def put(pool: Any, sequence: int, at: int, entry: Any) -> None:
    pool[TABLES[sequence, at // BLOCK_SIZE], :, at % BLOCK_SIZE] = entry


def test_a_row_writes_its_token_and_an_inactive_one_nothing() -> None:
    new, found, expected = new_entries(3), pools(), pools()
    starts, lengths = int32(17, 0, 47), int32(18, 0, 48)
    append.append_decode[(3, KV_HEADS)](*new, starts, lengths, TABLES, *found, 3, **SHAPE)
    for pool, entries in zip(expected, new, strict=True):
        put(pool, 0, 17, entries[0])
        put(pool, 2, 47, entries[2])
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_packed_tokens_go_to_their_own_sequences_from_their_starts_on() -> None:
    new, found, expected = new_entries(40), pools(), pools()
    starts, cu_seqlens = int32(14, 0, 5), int32(0, 20, 20, 33)  # tokens from 33 on have no sequence
    append.append_prefill[(40, KV_HEADS)](*new, starts, cu_seqlens, TABLES, *found, 3, 3, **SHAPE)
    for pool, entries in zip(expected, new, strict=True):
        for token in range(20):
            put(pool, 0, 14 + token, entries[token])
        for token in range(20, 33):
            put(pool, 2, 5 + token - 20, entries[token])
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
