"""Networks are built by TensorRT for RTX: its builder needs no GPU."""

from __future__ import annotations

from typing import Any

import pytest

from blink_persistent.testing.model_families import FAMILIES


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
