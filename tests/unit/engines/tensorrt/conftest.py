"""Networks are built by TensorRT for RTX: its builder needs no GPU."""

from __future__ import annotations

from typing import Any

import pytest

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "untied": {"tied_embeddings": False},
    "qwen2": {"attention_bias": True, "rms_norm_eps": 1e-6},
    "qwen3": {"qk_norm": True, "rope_theta": 1e6},
    "three_to_one": {"heads": 3, "kv_heads": 1},
    "phi": {
        **{"rotary_dim": 12, "rope_divisors": tuple(1.0 + i / 4 for i in range(6))},
        **{"rope_magnitude": 1.2},
    },
    "qwen3_moe": {
        **{"family": "qwen3_moe", "qk_norm": True, "intermediate_size": 48},
        **{"experts": 5, "experts_per_token": 2},
    },
}


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What an architecture of each family changes of the tiny one."""
    return FAMILIES[request.param]


@pytest.fixture(scope="session")
def trt() -> Any:
    """The module."""
    return pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")


@pytest.fixture(scope="session")
def builder(trt: Any) -> Any:
    """Its logger collects nothing: what a builder refuses raises by the layer's name."""
    return trt.Builder(trt.Logger(trt.Logger.INTERNAL_ERROR))
