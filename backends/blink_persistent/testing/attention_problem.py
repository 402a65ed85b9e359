"""A decode step's attention in arrays of numpy, for kernels that run on this host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from blink_persistent.engines.cuda.kernels.cuts.attention_call import AttentionCall
from blink_persistent.testing.primed_host import bfloat16, float32

CONTEXT = 1200
ROW_BLOCKS = 10  # of a row's block table
EPSILON = 1e-5
NAN = 0x7FC0  # of a bfloat16
Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """Lengths include the new token; 0: an inactive row.

    `others`: tokens of the step that are projected ahead of the rows'. `rounded`: as the library
    does it.
    """

    lengths: tuple[int, ...] = (100, 0, 1, 33)
    heads: int = 8
    kv_heads: int = 2
    head_dim: int = 128
    parts: int = 3
    splits: int = 1
    biased: bool = False
    normed: bool = False
    rounded: bool = False
    others: int = 0
    block_size: int = 32


class AttentionProblem:
    """The arrays of one attention, and what numpy makes of them."""

    def __init__(self, case: AttentionCase, parts: int | None = None) -> None:
        """`parts` of heads have scratch memory: by default all heads' splits."""
        self.case = case
        rng = np.random.default_rng(5)
        rows, size = len(case.lengths), case.head_dim
        self.blocks = max(44, ROW_BLOCKS * rows)
        width = (case.heads + 2 * case.kv_heads) * size
        projection = rng.standard_normal((case.parts, case.others + rows, width))
        self.rounded = bfloat16(projection)[0, case.others :]
        self.qkv = projection.astype(np.float32)[:, case.others :]
        if case.rounded:
            self.qkv = float32(self.rounded)[None]
        self.bias = bfloat16(rng.standard_normal(width))
        self.norms = [bfloat16(rng.random(size) + 0.5) for _ in range(2)]
        angle = rng.random((CONTEXT, size // 2)) * 7
        self.cos, self.sin = (turn(angle).astype(np.float32) for turn in (np.cos, np.sin))
        self.lengths = np.array(case.lengths, np.int32)
        self.positions = np.maximum(self.lengths - 1, 0).astype(np.int32)
        order = rng.permutation(self.blocks)[: ROW_BLOCKS * rows]
        self.tables = order.reshape(rows, ROW_BLOCKS).astype(np.int32)
        shape = self.blocks, case.kv_heads, case.block_size, size
        self.pages = [bfloat16(rng.standard_normal(shape)) for _ in range(2)]
        parts = parts or rows * case.heads * case.splits
        self.partial = np.full((parts, size), np.nan, np.float32)
        self.log_sums = np.full(parts, np.nan, np.float32)
        self.arrived = np.zeros(rows * case.kv_heads, np.uint32)
        self.out = np.full((rows, case.heads, size), NAN, np.uint16)

    def place(self, row: int, position: int) -> tuple[Any, ...]:
        """Of a row's entry in the pages."""
        block, at = divmod(position, self.case.block_size)
        return self.tables[row, block], slice(None), at

    def call(self) -> AttentionCall:
        """The kernel's parameters, which are valid as long as this."""
        case = self.case
        named: dict[str, npt.NDArray[Any]] = {
            **({"rounded": self.rounded} if case.rounded else {"qkv": self.qkv}),
            **{"cos": self.cos, "sin": self.sin},
            **{"lengths": self.lengths, "tables": self.tables},
            **{"keys": self.pages[0], "values": self.pages[1], "partial": self.partial},
            **{"log_sums": self.log_sums, "arrived": self.arrived, "out": self.out},
        }
        if case.biased:
            named["bias"] = self.bias
        if case.normed:
            named["q_norm"], named["k_norm"] = self.norms
        return AttentionCall(
            **{name: array.ctypes.data for name, array in named.items()},
            scale=case.head_dim**-0.5 * np.log2(np.e),
            epsilon=EPSILON,
            parts=case.parts,
            part_rows=case.others + len(case.lengths),
            rows=len(case.lengths),
            heads=case.heads,
            kv_heads=case.kv_heads,
            max_blocks=self.tables.shape[1],
            block_size=case.block_size,
            splits=case.splits,
        )

    def projected(self, row: int) -> tuple[Floats, Floats, Floats]:
        """Rotated queries and keys, and values, of a row's token, [heads, head_dim]."""
        case = self.case
        flat = self.qkv[:, row].sum(axis=0) + (float32(self.bias) if case.biased else 0)
        q, k, v = np.split(
            flat.reshape(-1, case.head_dim), [case.heads, case.heads + case.kv_heads]
        )
        if case.normed:
            q, k = (
                x / np.sqrt((x**2).mean(axis=1, keepdims=True) + EPSILON) * float32(gain)
                for x, gain in zip((q, k), self.norms, strict=True)
            )
        cos, sin = (np.tile(table[self.positions[row]], 2) for table in (self.cos, self.sin))
        swap = np.concatenate([-np.ones(case.head_dim // 2), np.ones(case.head_dim // 2)])
        q, k = (x * cos + np.roll(x, case.head_dim // 2, axis=1) * swap * sin for x in (q, k))
        return tuple(float32(bfloat16(x)) for x in (q, k, v))  # type: ignore[return-value]

    def expected(self, row: int) -> Floats:
        """The mixture, [heads, head_dim]."""
        case, length = self.case, self.case.lengths[row]
        q, k, v = self.projected(row)
        group, found = case.heads // case.kv_heads, []
        for head in range(case.heads):
            entries = [
                float32(pages)[self.tables[row], head // group].reshape(-1, case.head_dim)
                for pages in self.pages
            ]
            keys, values = (array[:length].copy() for array in entries)
            keys[-1], values[-1] = k[head // group], v[head // group]
            scores = keys @ q[head] / case.head_dim**0.5
            weights = np.exp(scores - scores.max())
            found.append(weights @ values / weights.sum())
        return np.array(found)

    def spoil_the_rest(self) -> None:
        """What is no row's entry becomes NaN."""
        for pages in self.pages:
            kept = pages.copy()
            pages[:] = NAN
            for row, length in enumerate(self.case.lengths):
                for at in range(length):
                    place = self.place(row, at)
                    pages[place] = kept[place]

    def check_no_numbers(self, run: Callable[[], None], part: int, entries: range) -> None:
        """Where such entries of the first row's keys (0) or values (1) are NaN, so is its mixture,
        and no other's."""
        expected = [self.expected(row) if n else 0 for row, n in enumerate(self.case.lengths)]
        self.spoil_the_rest()
        for at in entries:
            self.pages[part][self.place(0, at)] = NAN
        run()
        assert np.isnan(float32(self.out[0])).all(), "the answer would look like one"
        for found, other in zip(self.out[1:], expected[1:], strict=True):
            np.testing.assert_allclose(float32(found), other, atol=0.02, rtol=0.01)

    def check(self, run: Callable[[], None]) -> None:
        """Runs twice, since what blocks count has to be left as it was; compares everything that a
        kernel may write."""
        case = self.case
        before = [float32(pages).copy() for pages in self.pages]
        expected = [self.expected(row) if n else 0 for row, n in enumerate(case.lengths)]
        for _ in range(2):
            run()
        for row, length in enumerate(case.lengths):
            found = float32(self.out[row])
            np.testing.assert_allclose(found, expected[row], atol=0.02, rtol=0.01)
            assert np.abs(found - expected[row]).mean() < 0.002
            if length:
                place = self.place(row, length - 1)
                _, *appended = self.projected(row)
                for old, pages, new in zip(before, self.pages, appended, strict=True):
                    np.testing.assert_allclose(float32(pages)[place], new, rtol=2**-7, atol=1e-6)
                    old[place] = float32(pages)[place]
        for old, pages in zip(before, self.pages, strict=True):
            np.testing.assert_array_equal(float32(pages), old)
        assert not self.arrived.any()
