"""A node of a captured graph is traced to its layer by names."""

from __future__ import annotations

import pytest

from blink_persistent.engines.tensorrt.refused_layer import tell_layer

LAYERS = [
    ("layers.0/qkv", "sm80_gemm_bf16_a"),
    ("layers.0/attention/paged", ""),
    ("layers.0/output", "sm80_gemm_bf16_b"),
    ("layers.1/qkv", "sm80_gemm_bf16_a"),
    ("layers.1/down", "__myl_AddMul_myl0_7"),
]
NODES = [
    "kernel sm80_gemm_bf16_a_128x64",
    "kernel attend_split",
    "kernel sm80_gemm_bf16_b_128x64",
    "MEMCPY",
    "kernel sm80_gemm_bf16_a_128x64",
    "kernel __myl_AddMul_myl0_7",
]


@pytest.mark.parametrize(
    ("place", "told"),
    [
        (0, "; enqueued by the layer 'layers.0/qkv'"),
        (2, "; enqueued by the layer 'layers.0/output'"),
        (4, "; enqueued by the layer 'layers.1/qkv'"),  # the same kernel, once more
        (5, "; enqueued by the layer 'layers.1/down'"),
        (1, "; enqueued by the layer 'layers.0/qkv' or one soon after it"),
        (3, "; enqueued by the layer 'layers.0/output' or one soon after it"),
    ],
)
def test_the_layer_is_the_next_one_whose_kernel_it_is(place: int, told: str) -> None:
    assert tell_layer(NODES, place, LAYERS) == told


def test_a_plan_that_tells_no_layers_tells_none() -> None:
    assert tell_layer(NODES, 3, []) == ""
