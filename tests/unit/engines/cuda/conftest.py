"""Tests of the engine `cuda` that run on a CPU: plain references, and Triton's interpreter."""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blink_persistent.gpu import compile as device_code
from blink_persistent.testing.model_families import FAMILIES


def _interprets() -> bool:
    """May Triton's kernels be interpreted here? Where there is a GPU, `tests/gpu` runs them."""
    if any(importlib.util.find_spec(name) is None for name in ("torch", "triton")):
        return False
    import torch

    return not torch.cuda.is_available() and _takes_arrays_for_numbers()


def _takes_arrays_for_numbers() -> bool:
    """Triton 3.6's interpreter relies on it; numpy does so up to 2.3."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            return bool(int(np.ones(1)) == 1)
        except TypeError:
            return False


# Triton reads it when a kernel is defined, so it is set before any of them is imported.
INTERPRETS = _interprets()
if INTERPRETS:
    os.environ["TRITON_INTERPRET"] = "1"

CAPACITY = 512  # entries of a block table; enough for rows to be split


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What an architecture of each family changes of the tiny one."""
    return FAMILIES[request.param]


def tiny_cuts(architecture: Any) -> dict[Any, Any]:
    """Streams what can be cut in tiles of 16; the rest is the library's."""
    from blink_persistent.engines.cuda.kernels.cuts.choices import Cut
    from blink_persistent.engines.cuda.kernels.fused import product_shapes

    gated = (2 * architecture.intermediate_size, architecture.hidden_size)
    cuts = dict.fromkeys(product_shapes(architecture), Cut(features=16, step=16, splits=2))
    cuts[gated] = Cut(features=16, step=16)
    return {(shape, 8): cut for shape, cut in cuts.items() if cut.fits(*shape)}


def padded_rows(architecture: Any) -> dict[Any, Any]:
    """Has the library multiply three rows more than there are, wherever they exist."""
    from blink_persistent.engines.cuda.kernels.cuts.likely_cuts import step_products

    more = {rows: rows + 3 for rows in range(1, 128)}
    return {product.shape: more for product in step_products(architecture)}


@pytest.fixture
def kernel_kinds() -> dict[str, Callable[[Any], Any]]:
    """Both implementations of the operations, where they can run, for an architecture."""
    pytest.importorskip("torch", reason="torch is not installed")
    from blink_persistent.engines.cuda.kernels.reference import ReferenceKernels

    kinds: dict[str, Callable[[Any], Any]] = {"reference": lambda architecture: ReferenceKernels()}
    if INTERPRETS:
        from blink_persistent.engines.cuda.kernels.cuts.choices import DecodeTiling
        from blink_persistent.engines.cuda.kernels.fused import FusedKernels

        kinds["fused"] = lambda architecture: FusedKernels(
            architecture,
            max_rows=8,
            capacity=CAPACITY,
            processors=3,
            chained=False,
            device="cpu",
            decode=DecodeTiling(programs=3),
            cuts=tiny_cuts(architecture),
            padded=padded_rows(architecture),
        )
    return kinds


@pytest.fixture(params=["reference", "fused"])
def make_case(
    request: pytest.FixtureRequest, kernel_kinds: dict[str, Callable[[Any], Any]]
) -> Callable[..., Any]:
    """A `ModelCase` of what is changed of the tiny architecture, with kernels of either kind."""
    if request.param not in kernel_kinds:
        pytest.skip("Triton's interpreter is not used here")
    from blink_persistent.testing.model_case import ModelCase

    return lambda **changes: ModelCase(kernel_kinds[request.param], changes)


@pytest.fixture
def plain_case(kernel_kinds: dict[str, Callable[[Any], Any]]) -> Callable[..., Any]:
    """The same with plain PyTorch alone: Triton's interpreter takes seconds for a prompt."""
    from blink_persistent.testing.model_case import ModelCase

    return lambda **changes: ModelCase(kernel_kinds["reference"], changes)


@pytest.fixture
def device_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVRTC and what it needs, with nothing kept from earlier; else the test is skipped."""
    try:
        device_code.find_device_runtime()
        device_code._libraries()
    except device_code.DeviceCodeError as missing:
        pytest.skip(f"no device compiler: {missing}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
