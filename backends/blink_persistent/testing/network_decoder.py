"""Drives a TensorRT network by hand, evaluated in numpy, filling its inputs as the scheduler does.

paged = NetworkDecoder(trt, builder, architecture, weights)
logits = paged.prefill([Part(blocks=(3, 1), start=0, token_ids=(5, 6, 7))])
logits = paged.decode([Part(blocks=(3, 1), start=3, token_ids=(8,))])
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from blink_persistent.engines.tensorrt.attention import PagedAttention
from blink_persistent.engines.tensorrt.layers import Layers
from blink_persistent.engines.tensorrt.native_attention import NativeAttention
from blink_persistent.engines.tensorrt.network import Pages, build_network, pool_names
from blink_persistent.engines.tensorrt.weights import NetworkWeights
from blink_persistent.testing.step_parts import Inputs, Part, decode_inputs, prefill_inputs
from blink_persistent.testing.trt_interpreter import Interpreter
from blink_persistent.testing.trt_operations import Operation
from blink_server.importers.checkpoint import Architecture

Array = npt.NDArray[Any]


class NetworkDecoder:
    """A network with KV pools of its own, `pools` [blocks, kv_heads, block_size, head_dim]."""

    def __init__(
        self,
        trt: Any,
        builder: Any,
        architecture: Architecture,
        weights: NetworkWeights,
        *,
        attention: Callable[[Layers], PagedAttention] = NativeAttention,
        more: Mapping[str, tuple[str, Operation]] | None = None,
        native_experts: bool = False,
        block_size: int = 16,
        block_count: int = 32,
    ) -> None:
        """`more` are the interpreter's operations for an attention of another kind."""
        self._architecture = architecture
        self._max_blocks = -(-architecture.context_length // block_size)
        network = build_network(
            trt,
            builder,
            architecture,
            weights,
            Pages(block_size, self._max_blocks),
            attention,
            native_experts=native_experts,
        )
        self._interpreter = Interpreter(trt, network, more)
        shape = (block_count, architecture.kv_heads, block_size, architecture.head_dim)
        names = [name for layer in range(architecture.layers) for name in pool_names(layer)]
        self.pools: dict[str, Array] = {name: np.zeros(shape, weights.dtype) for name in names}

    def prefill(
        self, parts: Sequence[Part], *, sequences: int | None = None, tokens: int | None = None
    ) -> Array:
        """Logits [len(parts), vocabulary] of one step of the key (sequences, tokens)."""
        packed = sum(len(part.token_ids) for part in parts)
        inputs = prefill_inputs(parts, sequences or len(parts), tokens or packed, self._max_blocks)
        return self._step(inputs)[: len(parts)]

    def decode(self, parts: Sequence[Part], *, rows: int | None = None) -> Array:
        """Logits [len(parts), vocabulary] of one step of `rows` rows."""
        return self._step(decode_inputs(parts, rows or len(parts), self._max_blocks))[: len(parts)]

    def entries(self, blocks: Sequence[int], length: int) -> Array:
        """The first `length` entries of a table, [layers, 2, length, kv_heads, head_dim]."""
        pools = np.stack([self.pools[name][list(blocks)] for name in self.pools])
        two_by_layer = pools.reshape(self._architecture.layers, 2, *pools.shape[1:])
        by_entry = two_by_layer.swapaxes(3, 4)
        return by_entry.reshape(*by_entry.shape[:2], -1, *by_entry.shape[4:])[:, :, :length]

    def _step(self, inputs: Inputs) -> Array:
        outputs = self._interpreter.run({**inputs, **self.pools})
        self.pools = {name: outputs[f"{name}.out"] for name in self.pools}
        return outputs["logits"]
