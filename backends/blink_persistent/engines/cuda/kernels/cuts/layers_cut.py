"""How the kernel that makes all layers of a decode step is cut, for which models, and what it is
given (layers_call.h)."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from ctypes import c_uint32, c_uint64
from dataclasses import dataclass

from blink_persistent.engines.cuda.kernels.cuts.attention_call import AttentionCall
from blink_persistent.engines.cuda.kernels.cuts.wide_cut import ALIGNMENT, WINDOW
from blink_server.importers.checkpoint import Architecture

BLOCKS = 128  # of the grid, one a multiprocessor, at once
THREADS = 352  # of a block: two groups that multiply, three warps that copy and sum
HEAD_DIM = 128
GROUP = 4  # heads that share a key and a value
PAGE = 64  # entries that a copy of keys or of values takes
MOST_SHARED_BYTES = (228 - 2 - 2) << 10
"""Of a block, with what aligns it: all of a multiprocessor's but the KiB that each block costs, and
2 KiB for a resident scheduler beside it, without which a launch might wait for good."""
_FEATURES = 32  # of a block, in the residual stream
_TILE = 16  # features that a warp multiplies at a time
_MOST_FEATURES, _MOST_INNER = 64, 128  # for which there are enough warps
_BARRIER_BYTES, _FACTOR_BYTES, _ROOM_BYTES, _ATTENTION_BYTES = 256, 256, 1024, 8320
_ROWS = 8, 16


@dataclass(frozen=True, slots=True)
class LayerFeatures:
    """How many output features of each product a block has; of gate and up, of both."""

    qkv: int
    output: int
    gate_up: int
    down: int

    @classmethod
    def of(cls, architecture: Architecture) -> LayerFeatures:
        """Of a model for which `layers_fit`."""
        size, inner = architecture.hidden_size, architecture.intermediate_size
        heads = architecture.heads + 2 * architecture.kv_heads
        qkv = heads * architecture.head_dim // BLOCKS
        return cls(qkv, size // BLOCKS, inner // BLOCKS, size // BLOCKS)


def layers_fit(architecture: Architecture, capability: tuple[int, int], processors: int) -> bool:
    """Is there such a kernel for a model, on a GPU of that compute capability with so many
    multiprocessors for it? The KV's blocks have to be of whole `PAGE`s, too."""
    shape = architecture
    qkv = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    features = LayerFeatures.of(shape)
    return (
        capability == (9, 0)
        and processors >= BLOCKS
        and not shape.experts
        and not shape.attention_bias
        and shape.head_dim == HEAD_DIM
        and shape.heads == GROUP * shape.kv_heads
        and shape.hidden_size == BLOCKS * _FEATURES
        and qkv % (BLOCKS * _TILE) == 0
        and features.qkv <= _MOST_FEATURES
        and shape.intermediate_size % (BLOCKS * _TILE) == 0
        and features.gate_up <= _MOST_INNER
    )


@dataclass(frozen=True, slots=True)
class LayersCut:
    """`stages` of weights, with what they are multiplied with, are in shared memory or on their
    way, each of so many windows of 64 inner elements of a product.

    At most `early` of weights are on their way before all blocks have met for a product, `paged`
    where the last one is of KV, `flight` otherwise: all 1 to `stages`.
    """

    stages: int
    qkv: int
    output: int
    gate_up: int
    down: int
    early: int
    flight: int
    paged: int

    @property
    def windows(self) -> tuple[int, int, int, int]:
        """Of a stage of each product."""
        return self.qkv, self.output, self.gate_up, self.down

    def fits(self, rows: int, features: LayerFeatures) -> bool:
        """Can steps of up to so many rows, 8 or 16, be cut so?"""
        barriers = 8 * (3 * self.stages + 4)
        return (
            rows in _ROWS
            and self.stages > 1
            and all(1 <= most <= self.stages for most in (self.early, self.flight, self.paged))
            and barriers <= _BARRIER_BYTES
            and self.stage_bytes(rows, features) >= 2 * PAGE * HEAD_DIM
            and self.shared_bytes(rows, features) + ALIGNMENT <= MOST_SHARED_BYTES
        )

    def stage_bytes(self, rows: int, features: LayerFeatures) -> int:
        """Of the largest product's."""
        return max(
            2 * WINDOW * self.qkv * (features.qkv + rows),
            2 * WINDOW * self.output * (features.output + rows),
            2 * WINDOW * self.gate_up * (2 * features.gate_up + rows),
            2 * WINDOW * self.down * (features.down + rows),
        )

    def shared_bytes(self, rows: int, features: LayerFeatures) -> int:
        """Shared memory of a block, for steps of up to `rows`, without what aligns it."""
        stages = self.stages * self.stage_bytes(rows, features)
        exchange = 4 * rows * max(features.qkv, features.output)
        others = _BARRIER_BYTES + _FACTOR_BYTES + _ROOM_BYTES + _ATTENTION_BYTES
        return stages + exchange + others

    def kernel_name(self, rows: int) -> str:
        """Of its function, for steps of up to `rows`."""
        return "_".join(map(str, ("blink_layers", rows, self.stages, *self.windows)))

    def definition(self, rows: int, features: LayerFeatures) -> str:
        """Its line of BLINK_LAYERS."""
        of_block = features.qkv, features.output, features.gate_up
        sizes = rows, self.stages, *self.windows, *of_block
        return f"BLINK_LAYERS_KERNEL({self.kernel_name(rows)}, {', '.join(map(str, sizes))})"


class LayersCall(ctypes.Structure):
    """A kernel's parameters, but for its tensor maps (`LayersCall` there)."""

    _fields_ = [
        *((name, c_uint64) for name in ("gains", "residual", "normed", "inner", "squares")),
        *((name, c_uint64) for name in ("arrived", "head_gains", "pages", "error")),
        ("attention", AttentionCall),
        *((name, c_uint32) for name in ("layers", "blocks", "early", "flight", "paged")),
    ]


def layers_code(
    cuts: Iterable[tuple[int, LayersCut]],
    features: LayerFeatures,
    watchdog_cycles: int | None = None,
) -> str:
    """The text that stands before layers_gpu.cu, for these cuts, each of up to so many rows.

    With `watchdog_cycles` a kernel waits no longer than that, and leaves a word that says for what.
    """
    lines = sorted({cut.definition(rows, features) for rows, cut in cuts})
    text = "".join(f"{line} \\\n" for line in ("#define BLINK_LAYERS", *lines)) + "\n"
    return (
        text if watchdog_cycles is None else f"#define BLINK_WATCHDOG {watchdog_cycles}ll\n{text}"
    )
