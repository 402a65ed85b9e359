"""Mixtures of experts: the choice, the order by expert, and the products, each by its own rule."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from blink_server.testing.memory_checkpoint import tiny_architecture

torch = pytest.importorskip("torch", reason="torch is not installed")

from blink_persistent.engines.cuda.kernels.cuts.choices import (
    expert_blocks,
    expert_order_room,
    expert_tiling,
)
from blink_persistent.engines.cuda.kernels.reference import ReferenceKernels
from blink_persistent.engines.cuda.step_tensors import Workspace

EXPERTS, CHOSEN, HIDDEN, INNER = 7, 3, 32, 48
ARCHITECTURE = tiny_architecture(
    family="qwen3_moe",
    hidden_size=HIDDEN,
    intermediate_size=INNER,
    experts=EXPERTS,
    experts_per_token=CHOSEN,
)


@pytest.fixture
def fused(kernel_kinds: dict[str, Callable[[Any], Any]]) -> Any:
    """The Triton kernels, interpreted."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("Triton's interpreter is not used here")
    return kernel_kinds["fused"](ARCHITECTURE)


def expert_room(tokens: int) -> Any:
    """Where what no step has written is nothing that could be taken for an answer."""
    places = {"device": "cpu", "dtype": torch.float32}
    room = Workspace.allocate(ARCHITECTURE, tokens, tokens, **places).experts
    for tensor in (room.inner, room.parts, room.shares):
        tensor.fill_(torch.nan)
    for tensor in (room.chosen, room.order, room.block_experts):
        tensor.fill_(-77)
    return room


def entries(tokens: int, *inactive: int) -> Any:
    return torch.tensor([-1 if i in inactive else 3 * i for i in range(tokens)], dtype=torch.int32)


def test_the_choice_is_the_plain_one(fused: Any) -> None:
    """Also among equal scores."""
    scores = torch.randn(9, EXPERTS)
    scores[4] = 0.5
    scores[5, 2:6] = 3.0
    plain, found = expert_room(9), expert_room(9)
    for kernels, room in ((ReferenceKernels(), plain), (fused, found)):
        kernels.choose_experts(scores, entries(9, 0, 7), room)
    assert torch.equal(found.chosen, plain.chosen)
    assert found.chosen[4].tolist() == [0, 1, 2]
    assert found.chosen[[0, 7]].eq(-1).all()
    torch.testing.assert_close(found.shares, plain.shares)
    torch.testing.assert_close(found.shares.sum(dim=1), torch.ones(9))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_scores_that_are_no_numbers_lead_to_experts_that_exist(fused: Any, value: float) -> None:
    room = expert_room(1)
    with np.errstate(invalid="ignore"):
        fused.choose_experts(torch.full((1, EXPERTS), value), entries(1), room)
    assert 0 <= int(room.chosen.min()) <= int(room.chosen.max()) < EXPERTS
    assert room.shares.isnan().all(), "the answer would look like one"


@pytest.mark.parametrize("tokens", [1, 5, 40, 90])
def test_products_are_the_plain_ones(fused: Any, tokens: int) -> None:
    """For every tiling; tokens that take no part are left alone."""
    torch.manual_seed(tokens)
    x, scores = torch.randn(tokens, HIDDEN), torch.randn(tokens, EXPERTS)
    scores[:, 2] -= 50  # an expert that nobody chooses
    gate_up = torch.randn(EXPERTS, 2 * INNER, HIDDEN) / HIDDEN**0.5
    gate_up[2] = torch.nan
    down = torch.randn(EXPERTS, HIDDEN, INNER) / INNER**0.5
    inactive = range(tokens // 2, tokens // 2 + tokens // 5)
    results = []
    for kernels in (ReferenceKernels(), fused):
        room = expert_room(tokens + 3)
        kernels.choose_experts(scores, entries(tokens, *inactive), room)
        results.append(kernels.expert_products(x, gate_up, down, room))
    plain, found = results
    torch.testing.assert_close(found, plain, rtol=2e-5, atol=2e-5, equal_nan=True)
    assert found.shape == (CHOSEN, tokens, HIDDEN)
    active = [token for token in range(tokens) if token not in inactive]
    assert found[:, active].isfinite().all()
    assert found[:, list(inactive)].isnan().all()


@pytest.mark.parametrize("tokens", [2, 40, 500])
def test_pairs_lie_in_blocks_of_one_expert_in_their_order(fused: Any, tokens: int) -> None:
    """All that any routing needs, and all tokens with one expert, fit in the room."""
    torch.manual_seed(tokens)
    random = torch.stack([torch.randperm(EXPERTS)[:CHOSEN] for _ in range(tokens)]).int()
    random[tokens // 3] = -1
    skewed = torch.zeros_like(random)
    for chosen in (random, skewed):
        room = expert_room(tokens)
        room.chosen.copy_(chosen)
        fused.sort_pairs(room, tokens, EXPERTS)
        rows = expert_tiling(tokens * CHOSEN, EXPERTS).rows
        counts = Counter(chosen[chosen >= 0].tolist())
        needed = sum(-(-count // rows) for count in counts.values())
        blocks = expert_blocks(tokens * CHOSEN, EXPERTS, rows)
        assert needed <= blocks
        experts = room.block_experts[:blocks].tolist()
        assert experts[:needed] == sorted(experts[:needed])
        assert experts[needed:] == [-1] * (blocks - needed)
        placed = room.order[: needed * rows].view(needed, rows)
        by_expert: dict[int, list[int]] = {}
        for expert, block in zip(experts, placed.tolist(), strict=False):
            by_expert.setdefault(expert, []).extend(block)
        flat = chosen.flatten()
        for expert, pairs in by_expert.items():
            wanted = (flat == expert).nonzero().flatten().tolist()
            assert pairs == wanted + [-1] * (len(pairs) - len(wanted))
        assert by_expert.keys() == counts.keys()


@pytest.mark.parametrize(("pairs", "experts"), [(8, 128), (100, 7), (512, 128), (16384, 128)])
def test_the_worst_routing_fills_the_blocks_exactly(pairs: int, experts: int) -> None:
    """One pair each, and the rest with one expert, just so that its blocks are begun."""
    rows = expert_tiling(pairs, experts).rows
    touched = min(pairs, experts)
    counts = [1] * (touched - 1) + [pairs - touched + 1]
    assert sum(-(-count // rows) for count in counts) == expert_blocks(pairs, experts, rows)


def test_room_is_enough_for_every_number_of_tokens() -> None:
    blocks, places = expert_order_room(300, 16, 4)
    for tokens in range(1, 301):
        rows = expert_tiling(4 * tokens, 16).rows
        needed = expert_blocks(4 * tokens, 16, rows)
        assert needed <= blocks
        assert needed * rows <= places
