"""All layers of a decode step in one kernel, run thread by thread on this host: layers_host.cc."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from blink_persistent.engines.cuda.kernels.cuts.attention_call import MOST_GROUP, AttentionCall
from blink_persistent.engines.cuda.kernels.cuts.layers_cut import (
    GROUP,
    HEAD_DIM,
    LayerFeatures,
    LayersCall,
    LayersCut,
    layers_code,
)
from blink_persistent.samplers.host_compile import compile_host_library
from blink_persistent.testing.attention_problem import EPSILON, NAN, Floats
from blink_persistent.testing.primed_host import Way, bfloat16, float32
from blink_persistent.testing.wide_host import TileFaults

_ARRIVED_BEFORE = 4096  # at borders, of earlier launches


class HostLayers:
    """The compiled kernels, each for steps of up to so many rows."""

    def __init__(self, cuts: Iterable[tuple[int, LayersCut]], features: LayerFeatures) -> None:
        """Raises EngineFailure with the compiler's words."""
        code = layers_code(cuts, features)
        self._library = ctypes.CDLL(str(compile_host_library("layers_host.cc", code)))

    def shared_bytes(self, rows: int, cut: LayersCut) -> int:
        """What the kernel itself says it needs, without what aligns it."""
        return int(self._kernel(rows, cut)(None, 0, None, False, 0, None))

    def run(self, rows: int, cut: LayersCut, problem: LayersProblem, way: Way) -> None:
        """Where copies are not made late, multiplications are.

        Fails where threads wait for good, or a fault happened.
        """
        weights = (ctypes.c_void_p * len(problem.weights))(
            *(weight.ctypes.data for weight in problem.weights)
        )
        call, faults = problem.call(cut), TileFaults()
        stuck = self._kernel(rows, cut)(
            *(weights, problem.kv_blocks, ctypes.byref(call)),
            *(ctypes.c_bool(way.copies_late), way.seed, ctypes.byref(faults)),
        )
        assert not stuck
        assert not faults.found()

    def copied_pages(self, call: AttentionCall, blocks: int, most: int) -> list[list[int]]:
        """Where each block's pages begin, in entries of the KV, in the order of its copies; `most`:
        of a block."""
        counts = np.zeros(blocks, np.uint32)
        found = np.zeros((blocks, most), np.uint32)
        addresses = (ctypes.c_void_p(array.ctypes.data) for array in (counts, found))
        assert not self._library.blink_layers_pages(ctypes.byref(call), blocks, most, *addresses)
        assert counts.max() <= most
        return [list(map(int, pages[:count])) for pages, count in zip(found, counts, strict=True)]

    def _kernel(self, rows: int, cut: LayersCut) -> Any:
        return getattr(self._library, cut.kernel_name(rows))


@dataclass(frozen=True, slots=True)
class LayersCase:
    """Lengths include the new token; 0: an inactive row. `normed`: heads have norms."""

    lengths: tuple[int, ...]
    layers: int = 2
    kv_heads: int = 1
    block_size: int = 64
    normed: bool = False

    def blocks(self, features: LayerFeatures) -> int:
        """Of the grid, which has all of the layers' features."""
        return self.kv_heads * (GROUP + 2) * HEAD_DIM // features.qkv


class LayersProblem:
    """The arrays of one step, and what numpy makes of them."""

    def __init__(self, case: LayersCase, rows: int, features: LayerFeatures) -> None:
        """For a kernel of up to so many `rows`."""
        self.case = case
        self._rng = rng = np.random.default_rng(len(case.lengths))
        self._blocks = blocks = case.blocks(features)
        self._heads = heads = GROUP * case.kv_heads
        count, hidden, inner = (
            len(case.lengths),
            blocks * features.output,
            blocks * features.gate_up,
        )
        self._mixed = heads * HEAD_DIM
        qkv = (heads + 2 * case.kv_heads) * HEAD_DIM
        sizes = (qkv, hidden), (hidden, self._mixed), (2 * inner, hidden), (hidden, inner)
        self.weights = [
            bfloat16(rng.standard_normal(size) / size[1] ** 0.5)
            for _ in range(case.layers)
            for size in sizes
        ]
        self._gains = (1 + 0.2 * rng.standard_normal((2 * case.layers, hidden))).astype(np.float32)
        self._head_gains = bfloat16(1 + 0.3 * rng.standard_normal((case.layers, 2, HEAD_DIM)))
        self._before = rng.standard_normal((count, hidden)).astype(np.float32)

        self._lengths = np.array(case.lengths, np.int32)
        self._tables, self.kv_blocks = block_tables(case, rng)
        self._kv_before = self._filled_pages()
        self._pages = [pages.copy() for pages in self._kv_before]
        self._addresses = np.array([pages.ctypes.data for pages in self._pages], np.uint64)
        half = HEAD_DIM // 2
        angle = np.outer(np.arange(max(case.lengths) + 1), 10000.0 ** (-np.arange(half) / half))
        self._cos, self._sin = (turn(angle).astype(np.float32) for turn in (np.cos, np.sin))

        # Each with a row that nobody may write.
        self.residual = np.full((count + 1, hidden), np.nan, np.float32)
        self._qkv = np.full((count + 1, qkv), np.nan, np.float32)
        self._normed, self._mixture, self._inner = (
            np.full((count + 1, size), NAN, np.uint16) for size in (hidden, self._mixed, inner)
        )
        self._squares = np.full((hidden // 16 + 1, rows), np.nan, np.float32)
        self._partial = np.full((2 * blocks + 1, MOST_GROUP, HEAD_DIM), np.nan, np.float32)
        self._log_sums = np.full((2 * blocks + 1, MOST_GROUP), np.nan, np.float32)
        self._arrived = np.full(2, _ARRIVED_BEFORE, np.uint64)
        self._parts_done = np.zeros(count * case.kv_heads, np.uint32)

    def call(self, cut: LayersCut) -> LayersCall:
        """The kernel's parameters, which are valid as long as this."""
        case = self.case
        named: dict[str, npt.NDArray[Any]] = {
            **{"gains": self._gains, "residual": self.residual, "normed": self._normed},
            **{"inner": self._inner, "squares": self._squares, "arrived": self._arrived},
            "pages": self._addresses,
        }
        if case.normed:
            named["head_gains"] = self._head_gains
        return LayersCall(
            **{name: array.ctypes.data for name, array in named.items()},
            attention=self._attention(),
            layers=case.layers,
            blocks=self._blocks,
            early=cut.early,
            flight=cut.flight,
            paged=cut.paged,
        )

    def _attention(self) -> AttentionCall:
        case = self.case
        named: dict[str, npt.NDArray[Any]] = {
            **{"qkv": self._qkv, "cos": self._cos, "sin": self._sin},
            **{"lengths": self._lengths, "tables": self._tables},
            **{"partial": self._partial, "log_sums": self._log_sums},
            **{"arrived": self._parts_done, "out": self._mixture},
        }
        rows = len(case.lengths)
        return AttentionCall(
            **{name: array.ctypes.data for name, array in named.items()},
            scale=HEAD_DIM**-0.5 * np.log2(np.e),
            epsilon=EPSILON,
            parts=1,
            part_rows=rows,
            rows=rows,
            heads=self._heads,
            kv_heads=case.kv_heads,
            max_blocks=self._tables.shape[1],
            block_size=case.block_size,
            splits=1,
        )

    def entry(self, row: int, position: int | npt.NDArray[np.int64]) -> tuple[Any, ...]:
        """Where a row's entry, or each of some, lies in the pages, of all kv heads."""
        block, at = divmod(position, self.case.block_size)
        return self._tables[row, block], slice(None), at

    def spoil(self, part: int, row: int, position: int) -> None:
        """A row's entry in the first layer's keys (0) or values (1) becomes NaN."""
        self._kv_before[part][self.entry(row, position)] = NAN

    def launch(self, run: Callable[[], None]) -> Floats:
        """The residual stream behind all layers, where nothing is left of an earlier launch."""
        for scratch in (self._qkv, self._squares, self._partial, self._log_sums):
            scratch[:] = np.nan
        for features in (self._normed, self._mixture, self._inner):
            features[:] = NAN
        self.residual[:-1] = self._before
        for pages, before in zip(self._pages, self._kv_before, strict=True):
            pages[:] = before
        run()
        return self.residual[:-1].copy()

    def check(self, runs: Iterable[Callable[[], None]]) -> None:
        """Compares everything that a kernel may write; all runs leave the same."""
        expected, appended = self._expected()
        first: Floats | None = None
        for number, run in enumerate(runs):
            found = self.launch(run)
            np.testing.assert_allclose(found, expected, atol=0.05)
            assert np.abs(found - expected).mean() < 0.01
            self._check_pages(appended)
            self._check_left_alone(number + 1)
            first = found if first is None else first
            np.testing.assert_array_equal(found, first)

    def _check_pages(self, appended: list[list[Floats]]) -> None:
        """Nothing but the new entries is written."""
        for pages, before, new in zip(self._pages, self._kv_before, appended, strict=True):
            kept = before.copy()
            for row, length in enumerate(self.case.lengths):
                if length:
                    place = self.entry(row, length - 1)
                    np.testing.assert_allclose(float32(pages[place]), new[row], atol=0.04)
                    kept[place] = pages[place]
            np.testing.assert_array_equal(pages, kept)

    def _check_left_alone(self, launches: int) -> None:
        """What blocks count is as the next launch needs it; no array was left."""
        case = self.case
        groups = len(case.lengths) * case.kv_heads
        borders = case.layers * (4 * self._blocks + groups)
        assert list(self._arrived) == [_ARRIVED_BEFORE + launches * borders] * 2
        assert not self._parts_done.any()
        for array in (self.residual, self._qkv, self._squares, self._partial, self._log_sums):
            assert np.isnan(array[-1]).all()
        for features in (self._normed, self._mixture, self._inner):
            assert (features[-1] == NAN).all()

    def _expected(self) -> tuple[Floats, list[list[Floats]]]:
        """The residual stream, and what each row appends to each layer's keys and values.

        Of a row [kv_heads, head_dim].
        """
        x: Floats = self._before
        appended: list[list[Floats]] = []
        for layer in range(self.case.layers):
            weights = [float32(weight) for weight in self.weights[4 * layer : 4 * layer + 4]]
            mixture, *new = self._attend(layer, self._project(x, 2 * layer, weights[0]))
            appended += new
            x = x + rounded(mixture) @ weights[1].T
            gate, up = np.split(self._project(x, 2 * layer + 1, weights[2]), 2, axis=1)
            x = x + rounded(gate / (1 + np.exp(-gate)) * up) @ weights[3].T
        return x, appended

    def _project(self, x: Floats, norm: int, weight: Floats) -> Floats:
        """The norm's factor is applied behind the product."""
        factor = 1 / np.sqrt((x**2).mean(axis=1, keepdims=True) + EPSILON)
        product: Floats = rounded(x * self._gains[norm]) @ weight.T * factor
        return product

    def _attend(self, layer: int, qkv: Floats) -> tuple[Floats, list[Floats], list[Floats]]:
        """The mixture of all rows; each row's new keys and new values."""
        case, kv_heads = self.case, self.case.kv_heads
        mixture = np.zeros((len(case.lengths), self._mixed))
        new: tuple[list[Floats], list[Floats]] = ([], [])
        old = [float32(pages) for pages in self._kv_before[2 * layer : 2 * layer + 2]]
        for row, length in enumerate(case.lengths):
            heads = self._turned(layer, qkv[row].reshape(-1, HEAD_DIM), max(length - 1, 0))
            q, k, v = np.split(rounded(heads), [self._heads, self._heads + kv_heads])
            new[0].append(k)
            new[1].append(v)
            if length == 0:
                continue
            # [entries, kv_heads, head_dim]
            places = self.entry(row, np.arange(length - 1))
            keys, values = (
                np.concatenate([pages[places], token[None]])
                for pages, token in zip(old, (k, v), strict=True)
            )
            scores = np.einsum("kgd,tkd->kgt", q.reshape(kv_heads, GROUP, HEAD_DIM), keys)
            scores /= HEAD_DIM**0.5
            shares = np.exp(scores - scores.max(axis=2, keepdims=True))
            shares /= shares.sum(axis=2, keepdims=True)
            mixture[row] = np.einsum("kgt,tkd->kgd", shares, values).ravel()
        return mixture, *new

    def _turned(self, layer: int, heads: Floats, position: int) -> Floats:
        """The norm and the rotation of queries and keys."""
        turned = heads.copy()
        parts = turned[: self._heads], turned[self._heads : self._heads + self.case.kv_heads]
        for part, gain in zip(parts, float32(self._head_gains[layer]), strict=True):
            if self.case.normed:
                part *= gain / np.sqrt((part**2).mean(axis=1, keepdims=True) + EPSILON)
            low, high = np.split(part.copy(), 2, axis=1)
            cos, sin = self._cos[position], self._sin[position]
            part[:] = np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=1)
        return turned

    def _filled_pages(self) -> list[npt.NDArray[np.uint16]]:
        """Of all layers, keys and values; NaN in what is no row's entry.

        A mean of many values is not small, so that a page more or less shows.
        """
        case = self.case
        shape = self.kv_blocks, case.kv_heads, case.block_size, HEAD_DIM
        pages = [np.full(shape, NAN, np.uint16) for _ in range(2 * case.layers)]
        for number, array in enumerate(pages):
            for row, length in enumerate(case.lengths):
                entries = max(length - 1, 0), case.kv_heads, HEAD_DIM
                scale = 1 if number % 2 == 0 else 1 + length**0.5 / 3
                places = self.entry(row, np.arange(entries[0]))
                array[places] = bfloat16(scale * self._rng.standard_normal(entries))
        return pages


def rounded(values: Floats) -> Floats:
    """As bfloat16."""
    return float32(bfloat16(values))


def block_tables(case: LayersCase, rng: np.random.Generator) -> tuple[npt.NDArray[np.int32], int]:
    """The rows' blocks of the KV, in no order, and how many there are in all.

    One, the last of every table, is nobody's.
    """
    needed = [-(-length // case.block_size) for length in case.lengths]
    order = rng.permutation(sum(needed) + 1)
    tables = np.full((len(needed), max(needed) + 1), order[-1], np.int32)
    ends = np.cumsum(needed)
    for row, (count, end) in enumerate(zip(needed, ends, strict=True)):
        tables[row, :count] = order[end - count : end]
    return tables, len(order)
