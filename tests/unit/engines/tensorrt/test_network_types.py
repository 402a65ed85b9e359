"""Which types a network computes in, and which modules it refuses to be built with."""

from __future__ import annotations

import re
from collections import Counter
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from blink_persistent.engines.tensorrt.layers import Layers
from blink_persistent.engines.tensorrt.native_attention import NativeAttention
from blink_persistent.engines.tensorrt.network import Pages, build_network
from blink_persistent.engines.tensorrt.weights import NetworkWeights
from blink_server.errors import EngineFailure
from blink_server.testing.memory_checkpoint import random_checkpoint, tiny_architecture

FLOATS = {"FLOAT", "BF16"}
# Of each decoder layer: what leaves a product is widened, what enters one is rounded.
LAYER_CASTS = {
    "input_norm/rounded": "BF16",
    "qkv/float": "FLOAT",
    "q/rounded": "BF16",
    "k/rounded": "BF16",
    "v/rounded": "BF16",
    "attended/delta": "FLOAT",
    "inner_norm/rounded": "BF16",
    "inner/float": "FLOAT",
    "inner": "BF16",
    "out/delta": "FLOAT",
}
HEAD_CASTS = {"head/norm/rounded": "BF16", "head/x": "FLOAT"}
OTHER_CASTS = {
    True: {"step/table": "FLOAT", **HEAD_CASTS},  # one table serves as head too
    False: {"step/residual": "FLOAT", "head/weight": "FLOAT", **HEAD_CASTS},
}


def network_of(
    trt: Any, builder: Any, changes: dict[str, Any], dtype: npt.DTypeLike
) -> tuple[Any, Any]:
    """The network, and what must be kept for it."""
    architecture = tiny_architecture(**changes)
    tensors = random_checkpoint(architecture).dequantized()
    weights = NetworkWeights({name: tensor.astype(dtype) for name, tensor in tensors.items()})
    decoder = build_network(trt, builder, architecture, weights, Pages(16, 4), NativeAttention)
    return decoder.network, decoder


def layers_of(trt: Any, network: Any, kind: str) -> list[Any]:
    layers = (network.get_layer(i) for i in range(network.num_layers))
    return [layer for layer in layers if layer.type == getattr(trt.LayerType, kind)]


def float_casts(trt: Any, network: Any) -> dict[str, str]:
    """Casts from one float type to another, by name, and the type they give."""
    return {
        layer.name: layer.get_output(0).dtype.name
        for layer in layers_of(trt, network, "CAST")
        if layer.get_input(0).dtype.name in FLOATS
    }


@pytest.mark.parametrize("tied", [True, False])
def test_only_what_enters_and_leaves_products_is_cast(trt: Any, builder: Any, tied: bool) -> None:
    network, kept = network_of(trt, builder, {"tied_embeddings": tied}, ml_dtypes.bfloat16)
    expected = OTHER_CASTS[tied] | {
        f"layers.{layer}/{name}": kind for layer in range(2) for name, kind in LAYER_CASTS.items()
    }
    assert float_casts(trt, network) == expected
    del kept


def test_a_network_of_float32_casts_no_floats(
    trt: Any, builder: Any, family: dict[str, Any]
) -> None:
    network, kept = network_of(trt, builder, family, np.float32)
    assert float_casts(trt, network) == {}
    del kept


def test_products_are_of_bfloat16_but_routers_and_the_last(
    trt: Any, builder: Any, family: dict[str, Any]
) -> None:
    network, kept = network_of(trt, builder, family, ml_dtypes.bfloat16)
    kinds = Counter(
        (layer.get_input(0).dtype.name, layer.get_input(1).dtype.name)
        for layer in layers_of(trt, network, "MATRIX_MULTIPLY")
    )
    routers = 2 if "experts" in family else 0
    assert kinds[("FLOAT", "FLOAT")] == 1 + routers
    assert set(kinds) == {("FLOAT", "FLOAT"), ("BF16", "BF16")}
    del kept


def test_one_attention_and_two_updates_a_layer(trt: Any, builder: Any) -> None:
    network, kept = network_of(trt, builder, {"layers": 3}, ml_dtypes.bfloat16)
    assert len(layers_of(trt, network, "ATTENTION_INPUT")) == 3
    assert len(layers_of(trt, network, "KV_CACHE_UPDATE")) == 6
    assert len(layers_of(trt, network, "ROTARY_EMBEDDING")) == 6
    outputs = {network.get_output(i).name for i in range(network.num_outputs)}
    pools = {f"kv.{i}.{part}.out" for i in range(3) for part in ("keys", "values")}
    assert outputs == {*pools, "logits"}
    del kept


def test_native_attention_names_what_it_needs(trt: Any, builder: Any) -> None:
    old = SimpleNamespace(__version__="10.16.1", DataType=trt.DataType)
    layers = Layers(old, builder.create_network(0))
    with pytest.raises(EngineFailure, match=re.escape("10.16.1") + ".*needs TensorRT 11"):
        NativeAttention(layers)


def test_a_layer_that_is_refused_is_named(trt: Any, builder: Any) -> None:
    layers = Layers(trt, builder.create_network(0))
    x = layers.constant("x", np.ones((2, 3), np.float32))
    too_many = layers.network.add_topk(x, trt.TopKOperation.MAX, 5000, 1 << 1)
    with layers.scope("layers.7"), pytest.raises(EngineFailure, match=r"'layers\.7/best'"):
        layers.named(too_many, "best")
