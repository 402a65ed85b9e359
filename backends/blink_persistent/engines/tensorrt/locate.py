"""Where each token of a step belongs, from the scheduler's step buffers: the sizes are dynamic."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from blink_persistent.engines.tensorrt.layers import Layers
from blink_persistent.engines.tensorrt.trt_types import Tensor


@dataclass(frozen=True, slots=True)
class Located:
    """int32 [tokens] each.

    A token that belongs to nobody (of a row with length 0, or beyond the packed ones) has
    `active` 0 and position 0.
    """

    indices: Tensor  # 0, 1, 2 ...
    sequences: Tensor  # the row or sequence, 0 for tokens beyond the packed ones
    positions: Tensor
    active: Tensor  # 1 or 0


def locate(
    layers: Layers, token_ids: Tensor, start_positions: Tensor, lengths: Tensor, cu_seqlens: Tensor
) -> Located:
    """Rows, positions and activity of a step's tokens."""
    trt, one = layers.trt, layers.scalar(1, np.int32, 1)
    indices = layers.arange(layers.size(token_ids, 0, "tokens"), "indices")
    column = layers.reshape(indices, (-1, 1), "column")
    ends = layers.reshape(cu_seqlens, (1, -1), "ends")
    # Boundaries up to a token, its sequence's own first one among them, less that one.
    beyond = layers.elementwise(ends, column, "GREATER", "beyond")
    begun = layers.cast(layers.unary(beyond, "NOT", "begun"), trt.DataType.INT32, "begun/count")
    count = layers.reduce(begun, "SUM", 1, "boundaries", keep=False)
    packed = layers.reduce(cu_seqlens, "MAX", 0, "packed", keep=True)
    inside = layers.cast(
        layers.elementwise(indices, packed, "LESS", "inside"), trt.DataType.INT32, "inside/flag"
    )
    sequences = layers.elementwise(
        layers.elementwise(count, one, "SUB", "place"), inside, "PROD", "sequences"
    )
    length = layers.gather(lengths, sequences, "length")
    alive = layers.elementwise(length, layers.scalar(0, np.int32, 1), "GREATER", "alive")
    active = layers.elementwise(
        inside, layers.cast(alive, trt.DataType.INT32, "alive/flag"), "PROD", "active"
    )
    start = layers.gather(start_positions, sequences, "start")
    first = layers.gather(cu_seqlens, sequences, "first")
    offset = layers.elementwise(indices, first, "SUB", "offset")
    position = layers.elementwise(start, offset, "SUM", "position")
    positions = layers.elementwise(position, active, "PROD", "positions")
    return Located(indices, sequences, positions, active)


def last_tokens(layers: Layers, start_positions: Tensor, cu_seqlens: Tensor) -> Tensor:
    """int32 [n]: the place of each row's or sequence's last token, 0 where it has none before."""
    one = layers.scalar(1, np.int32, 1)
    rows = layers.arange(layers.size(start_positions, 0, "n"), "rows/indices")
    next_rows = layers.elementwise(rows, one, "SUM", "rows/next")
    ends = layers.gather(cu_seqlens, next_rows, "rows/ends")
    last = layers.elementwise(ends, one, "SUB", "rows/before_end")
    return layers.elementwise(last, layers.scalar(0, np.int32, 1), "MAX", "rows/last")
