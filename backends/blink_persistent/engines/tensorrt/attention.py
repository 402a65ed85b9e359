"""Attention over paged KV: the one seam between a network and how it attends.

Two attentions fit it: that of a plugin, in which the engine `cuda`'s kernels run, and
`NativeAttention` (`native_attention.py`), made of TensorRT's own layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from blink_persistent.engines.tensorrt.trt_types import Tensor


@dataclass(frozen=True, slots=True)
class Attended:
    """What a layer's attention gives: `mixed` [tokens, heads, head_dim], and both pools written.

    The pools are the tensors that TensorRT says alias the ones that went in; they become outputs
    of the network, to be bound to the same addresses.
    """

    mixed: Tensor
    k_pool: Tensor
    v_pool: Tensor


class PagedAttention(Protocol):
    """Writes a step's keys and values into their pages, then attends. One object a network.

    A row or sequence i has the tokens [cu_seqlens[i], cu_seqlens[i + 1]) of the step, at the
    positions from start[i] on; each sees the entries up to its own. In a decode step these are
    0, 1, 2 ..., one token a row. Rows with kv_len 0 and tokens beyond the last cu_seqlens write
    nothing, and what `mixed` holds for them has no meaning.
    """

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
        """The layers of one decoder layer's attention, named `name`/...

        q: [tokens, heads, head_dim], rotated, not scaled. k: [tokens, kv_heads, head_dim],
        rotated. v: as k. Pools: [block_count, kv_heads, block_size, head_dim]. All of the
        weights' type. block_table: int32 [n, max_blocks]; kv_len, start: int32 [n]; cu_seqlens:
        int32 [n + 1].
        """
        ...
