"""Attention over paged KV from TensorRT's own layers, without a plugin.

A page is a batch row of a KV-cache update, whose packed form takes another number of tokens for
each row; so tokens are put in the order of their pages first. Then the pages of each block table
are gathered, with zeros for what nobody has written, and attention has a batch row for each
sequence, in which all tokens of the step attend under one mask; of the results each token's own is
taken. So entries that are no numbers reach no other sequence. It copies the whole context in each
step and computes each token's scores for every row's entries: right everywhere, fast nowhere. The
packed form of TensorRT's attention itself would spare that, but has no kernel for what TensorRT for
RTX 1.7 builds for (8.0, 8.9, 12.0).

Needs TensorRT 11 or TensorRT for RTX.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from blink_persistent.engines.tensorrt.attention import Attended
from blink_persistent.engines.tensorrt.layers import Layers
from blink_persistent.engines.tensorrt.locate import Located, locate
from blink_persistent.engines.tensorrt.trt_types import Tensor
from blink_server.errors import EngineFailure

_NO_PAGE = 1 << 30  # beyond every page's number
_HIDDEN = -1e30  # added to the score of what a token must not see


@dataclass(frozen=True, slots=True)
class _Plan:
    """What all layers of a step share."""

    order: Tensor  # int32 [tokens] by page, those of nobody last
    page_ends: Tensor  # int32 [blocks + 1] tokens before each page, in that order
    write_at: Tensor  # int32 [blocks] the first entry to be written of each page
    written: Tensor  # bool [n, 1, capacity, 1] of the entries of each table
    mask: Tensor  # [1, 1, tokens, capacity] added to scores
    every: Tensor  # int32 [n] of zeros
    own: Tensor  # int32 [tokens] of each token in its own sequence, among n * tokens


class NativeAttention:
    """Fulfils `PagedAttention`. Raises EngineFailure for a module without packed KV updates."""

    def __init__(self, layers: Layers) -> None:
        if not hasattr(layers.trt, "AttentionIOForm"):
            raise EngineFailure(
                f"TensorRT {layers.trt.__version__} cannot update KV entries page by page: "
                "attention without a plugin needs TensorRT 11, or TensorRT for RTX"
            )
        self._layers = layers
        self._plan: _Plan | None = None

    def paged_attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        k_pool: Tensor,
        v_pool: Tensor,
        block_table: Tensor,
        kv_len: Tensor,
        start: Tensor,
        *,
        cu_seqlens: Tensor,
        name: str,
    ) -> Attended:
        layers, trt = self._layers, self._layers.trt
        if self._plan is None:
            self._plan = _Planner(layers, k_pool, block_table).plan(q, start, kv_len, cu_seqlens)
        k_pool = self._update(k_pool, k, f"{name}/keys")
        v_pool = self._update(v_pool, v, f"{name}/values")
        heads, head_dim = q.shape[1:]
        scale = layers.scalar(head_dim**-0.5, layers.numpy_type(q), 3)
        scaled = layers.elementwise(q, scale, "PROD", f"{name}/scaled")
        by_head = (1, heads, -1, head_dim)
        queries = layers.reshape(scaled, by_head, f"{name}/by_head", first=(1, 0, 2))
        attention = layers.network.add_attention_v2(
            layers.gather(queries, self._plan.every, f"{name}/queries"),
            self._entries(k_pool, block_table, f"{name}/keys"),
            self._entries(v_pool, block_table, f"{name}/values"),
            trt.AttentionNormalizationOp.SOFTMAX,
            trt.CausalMaskKind.NONE,
        )
        mixed = layers.output(attention, f"{name}/attention")
        attention.mask = self._plan.mask
        attention.decomposable = True
        all_mixed = layers.reshape(mixed, (-1, heads, head_dim), f"{name}/all", first=(0, 2, 1, 3))
        return Attended(layers.gather(all_mixed, self._plan.own, f"{name}/mixed"), k_pool, v_pool)

    def _update(self, pool: Tensor, entries: Tensor, name: str) -> Tensor:
        """The pool after a step's entries, [tokens, kv_heads, head_dim], were written to it."""
        layers, trt, plan = self._layers, self._layers.trt, self._plan
        assert plan is not None
        update = layers.network.add_kv_cache_update(
            pool,
            layers.gather(entries, plan.order, f"{name}/by_page"),
            plan.write_at,
            trt.KVCacheMode.LINEAR,
        )
        layers.named(update, f"{name}/update").update_form = trt.AttentionIOForm.PACKED_NHD
        update.update_lengths = plan.page_ends
        return update.get_output(0)

    def _entries(self, pool: Tensor, block_table: Tensor, name: str) -> Tensor:
        """The entries of each block table, [n, kv_heads, capacity, head_dim].

        Those that nobody has written are 0, since an added mask and a share of 0 hide no NaN.
        """
        layers, plan, (_, kv_heads, block_size, head_dim) = self._layers, self._plan, pool.shape
        assert plan is not None
        pages = layers.gather(pool, block_table, f"{name}/pages")
        shape = (-1, kv_heads, block_table.shape[1] * block_size, head_dim)
        entries = layers.reshape(pages, shape, f"{name}/all", first=(0, 2, 1, 3, 4))
        zero = layers.scalar(0, layers.numpy_type(pool), 4)
        return layers.select(plan.written, entries, zero, f"{name}/entries")


class _Planner:
    """Adds what all layers share, once."""

    def __init__(self, layers: Layers, pool: Tensor, block_table: Tensor) -> None:
        self._layers = layers
        self._pool = pool
        self._block_table = block_table
        self._block_size = pool.shape[2]
        self._capacity = block_table.shape[1] * self._block_size

    def plan(self, tokens: Tensor, start: Tensor, kv_len: Tensor, cu_seqlens: Tensor) -> _Plan:
        layers = self._layers
        with layers.scope("pages"):
            located = locate(layers, tokens, start, kv_len, cu_seqlens)
            page, offset = self._places(located)
            order = self._order(page, located.indices)
            page_ends, write_at = self._writes(page, offset)
            numbers = layers.constant("entries", np.arange(self._capacity, dtype=np.int32)[None])
            return _Plan(
                order,
                page_ends,
                write_at,
                self._written(numbers, kv_len),
                self._mask(located, numbers, layers.numpy_type(tokens)),
                layers.elementwise(kv_len, self._int(0), "PROD", "every"),
                self._own(located),
            )

    def _int(self, value: int, rank: int = 1) -> Tensor:
        return self._layers.scalar(value, np.int32, rank)

    def _both(self, x: Tensor, size: Tensor, name: str) -> tuple[Tensor, Tensor]:
        """x // size and x % size of int32 numbers that are not negative."""
        layers = self._layers
        quotient = layers.elementwise(x, size, "FLOOR_DIV", f"{name}/quotient")
        product = layers.elementwise(quotient, size, "PROD", f"{name}/product")
        return quotient, layers.elementwise(x, product, "SUB", f"{name}/remainder")

    def _places(self, located: Located) -> tuple[Tensor, Tensor]:
        """Each token's page, -1 where it writes none, and its offset in there."""
        layers, width = self._layers, self._int(self._block_table.shape[1])
        number, offset = self._both(located.positions, self._int(self._block_size), "place")
        row = layers.elementwise(located.sequences, width, "PROD", "place/row")
        index = layers.elementwise(row, number, "SUM", "place/index")
        flat = layers.reshape(self._block_table, (-1,), "place/tables")
        block = layers.gather(flat, index, "place/block")
        less = layers.elementwise(block, self._int(_NO_PAGE), "SUB", "place/less")
        kept = layers.elementwise(less, located.active, "PROD", "place/kept")
        return layers.elementwise(kept, self._int(_NO_PAGE), "SUM", "page"), offset

    def _order(self, page: Tensor, indices: Tensor) -> Tensor:
        """The tokens in the order of their pages, as they came within one; int32 [tokens]."""
        layers = self._layers
        page_row, page_column = self._row(page, "page/row"), self._column(page, "page/column")
        index_row = self._row(indices, "index/row")
        index_column = self._column(indices, "index/column")
        less = layers.elementwise(page_row, page_column, "LESS", "order/less")
        equal = layers.elementwise(page_row, page_column, "EQUAL", "order/equal")
        earlier = layers.elementwise(index_row, index_column, "LESS", "order/earlier")
        tie = layers.elementwise(equal, earlier, "AND", "order/tie")
        before = layers.elementwise(less, tie, "OR", "order/before")
        rank = self._count(before, 1, "order/rank")
        here = layers.elementwise(self._row(rank, "rank/row"), index_column, "EQUAL", "order/here")
        flag = layers.cast(here, layers.trt.DataType.INT32, "order/flag")
        place = layers.elementwise(flag, index_row, "PROD", "order/place")
        return layers.reduce(place, "SUM", 1, "order", keep=False)

    def _writes(self, page: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
        """`page_ends` and `write_at` of `_Plan`."""
        layers, size = self._layers, self._int(self._block_size)
        blocks = layers.size(self._pool, 0, "blocks")
        ends = layers.elementwise(blocks, layers.scalar(1, np.int64, 1), "SUM", "blocks/ends")
        page_row = self._row(page, "writes/page")
        bounds = self._column(layers.arange(ends, "writes/bounds"), "writes/bounds/column")
        below = layers.elementwise(page_row, bounds, "LESS", "writes/below")
        page_ends = self._count(below, 1, "writes/page_ends")
        numbers = self._column(layers.arange(blocks, "writes/numbers"), "writes/numbers/column")
        here = layers.elementwise(page_row, numbers, "EQUAL", "writes/here")
        flag = layers.cast(here, layers.trt.DataType.INT32, "writes/flag")
        left = self._row(layers.elementwise(size, offset, "SUB", "writes/left"), "writes/left/row")
        room = layers.elementwise(flag, left, "PROD", "writes/room")
        most = layers.reduce(room, "MAX", 1, "writes/most", keep=False)
        first = layers.elementwise(size, most, "SUB", "writes/first")
        # A page that nothing is written to has its size here: an index it does not have.
        return page_ends, self._both(first, size, "writes/at")[1]

    def _own(self, located: Located) -> Tensor:
        """`own` of `_Plan`."""
        layers = self._layers
        # Not by `size`: TensorRT would count on the host and copy what it finds.
        last = layers.reduce(located.indices, "MAX", 0, "own/last", keep=True)
        tokens = layers.elementwise(last, self._int(1), "SUM", "own/tokens")
        first = layers.elementwise(located.sequences, tokens, "PROD", "own/first")
        return layers.elementwise(first, located.indices, "SUM", "own")

    def _written(self, numbers: Tensor, kv_len: Tensor) -> Tensor:
        """`written` of `_Plan`."""
        layers = self._layers
        length = self._column(kv_len, "written/length")
        below = layers.elementwise(numbers, length, "LESS", "written/below")
        return layers.reshape(below, (-1, 1, self._capacity, 1), "written")

    def _mask(self, located: Located, numbers: Tensor, dtype: np.dtype[Any]) -> Tensor:
        """0 for what a token sees of its sequence's entries: those up to its own."""
        layers = self._layers
        last = self._column(located.positions, "mask/last")
        hidden = layers.elementwise(numbers, last, "GREATER", "mask/hidden")
        # A mask of booleans makes TensorRT count them first, through host memory.
        flags = layers.cast(hidden, layers.type_of(dtype), "mask/flags")
        added = layers.elementwise(flags, layers.scalar(_HIDDEN, dtype, 2), "PROD", "mask/added")
        axes = layers.constant("mask/axes", np.array((0, 1), np.int64))
        return layers.output(layers.network.add_unsqueeze(added, axes), "mask")

    def _row(self, x: Tensor, name: str) -> Tensor:
        return self._layers.reshape(x, (1, -1), name)

    def _column(self, x: Tensor, name: str) -> Tensor:
        return self._layers.reshape(x, (-1, 1), name)

    def _count(self, flags: Tensor, axis: int, name: str) -> Tensor:
        """How many flags are set along an axis, int32."""
        layers = self._layers
        numbers = layers.cast(flags, layers.trt.DataType.INT32, f"{name}/numbers")
        return layers.reduce(numbers, "SUM", axis, name, keep=False)
