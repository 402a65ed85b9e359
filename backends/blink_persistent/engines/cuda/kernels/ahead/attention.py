"""Decode attention in CUDA C++ that reads ahead: it loads KV while the product before it ends.

Rotation, append and the sum over splits are part of the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from typing import Any

import torch
from torch import Tensor

from blink_persistent.engines.cuda.kernels.ahead.tensor_maps import tensor_map
from blink_persistent.engines.cuda.kernels.cuts.attention_call import (
    MOST_GROUP,
    AttentionCall,
    attends_ahead,
)
from blink_persistent.engines.cuda.kernels.cuts.choices import (
    ROW_TILES,
    AnyAttention,
    attention_tile,
)
from blink_persistent.engines.cuda.kernels.cuts.direct_attention_cut import (
    MOST_SPLITS,
    DirectCut,
    direct_code,
)
from blink_persistent.engines.cuda.kernels.cuts.even_attention_cut import PAGE, EvenCut, even_code
from blink_persistent.engines.cuda.kernels.cuts.wide_cut import ALIGNMENT
from blink_persistent.engines.cuda.kernels.protocol import Projected
from blink_persistent.gpu.chained_launch import ChainedKernel
from blink_persistent.gpu.driver import Gpu
from blink_server.importers.checkpoint import Architecture


class AheadAttention:
    """For one model's heads and steps of up to 64 rows; the `gpu` owns its code.

    Steps share its scratch memory.
    """

    def __init__(
        self,
        gpu: Gpu,
        architecture: Architecture,
        *,
        max_rows: int,
        processors: int,
        device: Any,
        cuts: Mapping[int, AnyAttention],
    ) -> None:
        """`cuts`: by the most rows that each is for, as in `StepChoices`.

        The model's heads have to be such that `attends_ahead` says so, and that an `EvenCut` fits.
        Raises DeviceCodeError or CudaError.
        """
        assert attends_ahead(architecture)
        self._gpu, self._shape, self._processors = gpu, architecture, processors
        self._cuts = cuts
        size, rows = architecture.head_dim, min(max_rows, ROW_TILES[-1])
        self._kernels = load_attentions(gpu, set(self._cuts.values()), architecture)
        parts = max(
            (
                self._parts(cut, count)
                for count in range(1, rows + 1)
                if (cut := self._cut(count)) is not None
            ),
            default=0,
        )
        floats = {"dtype": torch.float32, "device": device}
        self._partial = torch.zeros(parts * size, **floats)
        self._log_sums = torch.zeros(parts, **floats)
        self._arrived = torch.zeros(rows * architecture.kv_heads, dtype=torch.int32, device=device)

    def takes(self, new: Projected) -> bool:
        """Can it attend to these? To what the library's products leave only with an `EvenCut`."""
        cut = self._cut(new.qkv.shape[1])
        return isinstance(cut, EvenCut) or (cut is not None and not is_rounded(new))

    def __call__(
        self,
        new: Projected,
        keys: Tensor,
        values: Tensor,
        lengths: Tensor,
        block_tables: Tensor,
        out: Tensor,
        *,
        chained: bool,
    ) -> None:
        """As `Kernels.attend_new`, on PyTorch's current stream."""
        (rows, max_blocks), block_size = block_tables.shape, keys.shape[2]
        heads, shape = new.heads, self._shape
        cut = self._cut(rows)
        assert cut is not None
        splits = self._splits(cut, rows, max_blocks * block_size)
        arrays = {
            "rounded" if is_rounded(new) else "qkv": new.qkv,
            **{"bias": heads.bias, "q_norm": heads.q_norm, "k_norm": heads.k_norm},
            **{"cos": new.rotary.cos, "sin": new.rotary.sin},
            **{"lengths": lengths, "tables": block_tables},
            **{"keys": keys, "values": values, "partial": self._partial},
            **{"log_sums": self._log_sums, "arrived": self._arrived, "out": out},
        }
        call = AttentionCall(
            **{name: tensor.data_ptr() for name, tensor in arrays.items() if tensor is not None},
            scale=shape.head_dim**-0.5 * math.log2(math.e),
            epsilon=heads.epsilon,
            parts=len(new.qkv),
            part_rows=new.step_tokens,
            rows=rows,
            heads=heads.heads,
            kv_heads=heads.kv_heads,
            max_blocks=max_blocks,
            block_size=block_size,
            splits=splits,
        )
        stream = torch.cuda.current_stream().cuda_stream
        kernel = self._kernels[cut]
        if isinstance(cut, EvenCut):
            maps = (
                tensor_map(self._gpu, pages.view(-1, shape.head_dim), min(PAGE, block_size))
                for pages in (keys, values)
            )
            kernel.launch(cut.blocks(self._processors), stream, *maps, call, chained=chained)
            return
        blocks, cluster = rows * heads.kv_heads * splits, splits if is_clustered(cut) else 1
        kernel.launch(blocks, stream, call, chained=chained, cluster=cluster)

    def _cut(self, rows: int) -> AnyAttention | None:
        tile = attention_tile(rows, self._cuts)
        return None if tile is None else self._cuts.get(tile)

    def _splits(self, cut: AnyAttention, rows: int, capacity: int) -> int:
        if isinstance(cut, EvenCut):
            return 1
        return cut.splits(rows, self._shape.kv_heads, capacity, self._processors)

    def _parts(self, cut: AnyAttention, rows: int) -> int:
        """Of heads, that blocks leave to be added."""
        if isinstance(cut, EvenCut):
            return cut.blocks(self._processors) * 2 * MOST_GROUP
        longest = MOST_SPLITS * self._shape.context_length
        return rows * self._shape.heads * self._splits(cut, rows, longest)


def load_attentions(
    gpu: Gpu, cuts: Set[AnyAttention], architecture: Architecture
) -> dict[AnyAttention, ChainedKernel]:
    """Their kernels, which the `gpu` owns. Raises DeviceCodeError or CudaError."""
    size, group = architecture.head_dim, architecture.heads // architecture.kv_heads
    direct = {cut: cut.shared_bytes(size, group) for cut in cuts if isinstance(cut, DirectCut)}
    even = {
        cut: cut.shared_bytes(size, group) + ALIGNMENT for cut in cuts if isinstance(cut, EvenCut)
    }
    assert all(cut.fits(size, group) for cut in even)
    sources: list[tuple[str, Mapping[Any, int], str]] = [
        ("direct_attention_gpu.cu", direct, direct_code(direct, size)),
        ("even_attention_gpu.cu", even, even_code(even, size)),
    ]
    kernels: dict[AnyAttention, ChainedKernel] = {}
    for source, of_kind, code in sources:
        if not of_kind:
            continue
        program = gpu.load(source, (AttentionCall,), prologue=code)
        for cut, shared in of_kind.items():
            function = program.function(cut.kernel_name(size))
            kernels[cut] = ChainedKernel(gpu, function, threads=cut.threads, shared_bytes=shared)
            if is_clustered(cut):
                kernels[cut].allow_large_clusters()
    return kernels


def is_rounded(new: Projected) -> bool:
    """Is it what a product of the library leaves, one part?"""
    return bool(new.qkv.dtype == torch.bfloat16)


def is_clustered(cut: AnyAttention) -> bool:
    """Are a row's splits the blocks of a cluster?"""
    return isinstance(cut, DirectCut) and cut.clustered
