"""Rotary embedding of a step's queries and keys."""

from __future__ import annotations

import numpy as np

from blink_persistent.engines.tensorrt.layers import Layers
from blink_persistent.engines.tensorrt.trt_types import Tensor
from blink_server.importers.checkpoint import Architecture


class Rotary:
    """Turns heads by their tokens' positions, half-split, in float32.

    The tables are those of `Architecture.rotary_tables`: what turns in part only or is scaled is
    in them already.
    """

    def __init__(
        self, layers: Layers, architecture: Architecture, capacity: int, positions: Tensor
    ) -> None:
        """`positions`: int32 [tokens], all below `capacity`."""
        self._layers = layers
        self._head_dim = architecture.head_dim
        cos, sin = architecture.rotary_tables(capacity)
        self._cos = layers.constant("rotary/cos", cos.astype(np.float32))
        self._sin = layers.constant("rotary/sin", sin.astype(np.float32))
        self._positions = layers.reshape(positions, (-1, 1), "rotary/positions")

    def turn(self, x: Tensor, name: str) -> Tensor:
        """float32 [tokens, heads, head_dim], turned; each token is a batch of its own."""
        layers, heads = self._layers, x.shape[1]
        batch = layers.reshape(x, (-1, heads, 1, self._head_dim), f"{name}/batch")
        layer = layers.network.add_rotary_embedding(
            batch, self._cos, self._sin, False, self._head_dim
        )
        layers.named(layer, f"{name}/rotary").set_input(3, self._positions)
        return layers.reshape(layer.get_output(0), (-1, heads, self._head_dim), name)
