"""A mixture of experts in a TensorRT network: Qwen 3's, whose best experts' shares add up to 1."""

from __future__ import annotations

import numpy as np

from blink_persistent.engines.tensorrt.layers import Layers
from blink_persistent.engines.tensorrt.trt_types import Tensor
from blink_persistent.engines.tensorrt.weights import NetworkWeights
from blink_server.importers.checkpoint import Architecture

NATIVE_TARGETS = frozenset({"sm_100", "sm_103", "sm_110"})
"""GPUs on which TensorRT has kernels for its own layer of experts (10.16 to 11.4)."""


class Experts:
    """A layer's experts, by TensorRT's own layer where that is asked for and the module has it.

    Primitives take all experts for one wide MLP, in which those not chosen have the share 0: a step
    reads every expert's weights, and has room for [tokens, experts, 2 * intermediate].
    """

    def __init__(
        self, layers: Layers, architecture: Architecture, weights: NetworkWeights, *, native: bool
    ) -> None:
        self._layers = layers
        self._architecture = architecture
        self._weights = weights
        self._native = native and hasattr(layers.network, "add_moe")

    def mix(self, prefix: str, x: Tensor) -> Tensor:
        """What the experts of the layer `prefix` make of `x`, [tokens, hidden] in its type."""
        best, shares = self._choose(prefix, x)
        add = self._own_layer if self._native else self._wide_mlp
        return add(prefix, x, best, shares)

    def _choose(self, prefix: str, x: Tensor) -> tuple[Tensor, Tensor]:
        """Each token's best experts, int32 [tokens, chosen], and their shares in float32."""
        layers, trt = self._layers, self._layers.trt
        wide = trt.DataType.FLOAT
        # The matrix is small, and rounded scores would choose by chance.
        router = self._weights[f"{prefix}.mlp.gate.weight"].astype(np.float32)
        scores = layers.matmul(
            layers.cast(x, wide, "router/x"),
            layers.constant("router/weight", router),
            "router/scores",
            transposed=True,
        )
        chosen = self._architecture.experts_per_token
        best = layers.named(
            layers.network.add_topk(scores, trt.TopKOperation.MAX, chosen, 1 << 1), "router/best"
        )
        shares = layers.named(layers.network.add_softmax(best.get_output(0)), "router/shares")
        shares.axes = 1 << 1
        return best.get_output(1), shares.get_output(0)

    def _matrices(self, prefix: str, parts: tuple[int, ...]) -> list[Tensor]:
        """Gate, up and down of all experts, [experts, part * intermediate * hidden] each.

        `parts` says which are together. They are cut from one constant: an expert's three
        matrices are of one size and lie behind each other in the weight file.
        """
        architecture = self._architecture
        names = [
            [f"{prefix}.{mlp}.{part}_proj.weight" for part in ("gate", "up", "down")]
            for mlp in architecture.mlp_names()
        ]
        size = architecture.intermediate_size * architecture.hidden_size
        whole = self._layers.constant("experts", self._weights.groups(names))
        return self._layers.split(whole, [part * size for part in parts], "experts/split")

    def _wide_mlp(self, prefix: str, x: Tensor, best: Tensor, shares: Tensor) -> Tensor:
        layers, architecture = self._layers, self._architecture
        count, inner = architecture.experts, architecture.intermediate_size
        hidden = architecture.hidden_size
        pair, down = self._matrices(prefix, (2, 1))
        gate_up = layers.matmul(
            x,
            layers.reshape(pair, (count * 2 * inner, hidden), "experts/gate_up/weight"),
            "experts/gate_up",
            transposed=True,
        )
        by_expert = layers.reshape(gate_up, (-1, 2 * inner), "experts/rows")
        wide = layers.swiglu(by_expert, inner, layers.trt.DataType.FLOAT, "experts/inner")
        weighed = layers.elementwise(wide, self._spread(best, shares), "PROD", "experts/weighed")
        rounded = layers.cast(weighed, x.dtype, "experts/rounded")
        flat = layers.reshape(rounded, (-1, count * inner), "experts/flat")
        columns = layers.reshape(
            down, (count, hidden, inner), "experts/down/columns", then=(0, 2, 1)
        )
        rows = layers.reshape(columns, (count * inner, hidden), "experts/down/weight")
        return layers.matmul(flat, rows, "experts/down")

    def _spread(self, best: Tensor, shares: Tensor) -> Tensor:
        """The share of each expert in each token, float32 [tokens * experts, 1]."""
        layers, architecture = self._layers, self._architecture
        count, chosen = architecture.experts, architecture.experts_per_token
        number = layers.constant("experts/numbers", np.arange(count, dtype=np.int32)[None, None])
        choice = layers.reshape(best, (-1, chosen, 1), "experts/choice")
        hit = layers.elementwise(choice, number, "EQUAL", "experts/hit")
        hit = layers.cast(hit, layers.trt.DataType.FLOAT, "experts/hit/float")
        share = layers.reshape(shares, (-1, chosen, 1), "experts/share")
        parts = layers.elementwise(hit, share, "PROD", "experts/parts")
        spread = layers.reduce(parts, "SUM", 1, "experts/spread", keep=False)
        return layers.reshape(spread, (-1, 1), "experts/spread/column")

    def _own_layer(self, prefix: str, x: Tensor, best: Tensor, shares: Tensor) -> Tensor:
        layers, architecture = self._layers, self._architecture
        count, inner = architecture.experts, architecture.intermediate_size
        hidden, chosen = architecture.hidden_size, architecture.experts_per_token
        shapes = {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
        # The layer multiplies from the left: its matrices are [in_features, out_features].
        gate, up, down = (
            layers.reshape(part, (count, *shape), f"experts/{name}/weight", then=(0, 2, 1))
            for part, (name, shape) in zip(
                self._matrices(prefix, (1, 1, 1)), shapes.items(), strict=True
            )
        )
        moe = layers.network.add_moe(
            layers.reshape(x, (1, -1, hidden), "experts/x"),
            layers.reshape(best, (1, -1, chosen), "experts/chosen"),
            layers.cast(
                layers.reshape(shares, (1, -1, chosen), "experts/shares"),
                x.dtype,
                "experts/rounded",
            ),
        )
        layers.named(moe, "experts/mixed").set_gated_weights(
            gate, up, down, layers.trt.MoEActType.SILU
        )
        return layers.reshape(moe.get_output(0), (-1, hidden), "experts/out")
