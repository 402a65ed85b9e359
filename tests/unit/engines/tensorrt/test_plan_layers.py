"""What TensorRT for RTX makes of the network: plans for GPUs that this machine does not have."""

from __future__ import annotations

import re
from typing import Any

import pytest

from blink_persistent.engines.tensorrt.network import pool_names
from blink_persistent.testing.plan_layers import PlanLayer, plan_layers
from blink_server.importers.checkpoint import Architecture
from blink_server.testing.memory_checkpoint import tiny_architecture

TARGETS = ("sm_80", "sm_89", "sm_120")
PROFILES = 2
STEP_INPUTS = {"token_ids", "start_positions", "lengths", "cu_seqlens", "block_tables"}


def is_attention(layer: PlanLayer) -> bool:
    return "mha" in layer.name


def only_casts(layer: PlanLayer) -> bool:
    """A kernel is named by its operations: "__myl_CastAddMul_myl0_12"."""
    found = re.fullmatch(r"__myl_((?:[A-Z][a-z0-9]*)+)_myl\d+_\d+", layer.name)
    return found is not None and set(re.findall("[A-Z][a-z0-9]*", found[1])) <= {"Cast", "Move"}


def check(architecture: Architecture, layers: list[PlanLayer]) -> None:
    attended = [layer.name for layer in layers if is_attention(layer)]
    assert len(attended) == PROFILES * architecture.layers, f"not fused: {attended}"
    pools = [name for number in range(architecture.layers) for name in pool_names(number)]
    for pool in pools:
        writers = [layer for layer in layers if f"{pool}.out" in layer.outputs]
        assert len(writers) == PROFILES, f"{pool}: written by {writers}"
        assert all(f"{pool}.out" in layer.inputs for layer in writers), "written as a whole"
        users = [layer.name for layer in layers if pool in layer.inputs | layer.outputs]
        assert not users, f"{pool} does not alias its output in {users}"
    made = {name for layer in layers for name in layer.outputs}
    given = {name for layer in layers for name in layer.inputs} - made
    assert given == STEP_INPUTS, f"copied from host memory in each step: {given - STEP_INPUTS}"
    moves = [layer.name for layer in layers if layer.kind in {"copy", "reformat", "cast"}]
    assert not moves
    casts = [layer.name for layer in layers if only_casts(layer)]
    assert not casts
    wide = {
        re.sub(r"_myl\d+$", "", name)
        for layer in layers
        for name, kind in layer.constants.items()
        if kind == "Float" and not re.search("/gain_|/bias_|/rotary/|_alpha|_beta", name)
    }
    routers = architecture.layers if architecture.experts else 0
    uses = 2 if architecture.tied_embeddings else 1  # as a table of rows, and as the last matrix
    assert len(wide) == uses + routers, f"other matrices than the head and routers are wide: {wide}"


@pytest.mark.parametrize("changes", [{}, pytest.param({"head_dim": 64}, marks=pytest.mark.slow)])
def test_a_plan_for_another_gpu(trt: Any, changes: dict[str, Any]) -> None:
    architecture = tiny_architecture(**changes)
    check(architecture, plan_layers(architecture, "sm_89"))


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_plans_of_every_family(trt: Any, target: str, family: dict[str, Any]) -> None:
    architecture = tiny_architecture(**family)
    check(architecture, plan_layers(architecture, target))
