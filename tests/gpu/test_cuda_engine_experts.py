"""Qwen3-30B-A3B's mixture of experts on a GPU: fused kernels against plain ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from blink_persistent.engines.cuda.architectures import ARCHITECTURES
from blink_persistent.engines.cuda.kernels.ahead.one_token_experts import OneTokenExperts
from blink_persistent.engines.cuda.kernels.cuts.choices import ROW_TILES, Cut
from blink_persistent.engines.cuda.kernels.cuts.hopper import measured_choices
from blink_persistent.engines.cuda.kernels.fused import FusedKernels, product_shapes
from blink_persistent.engines.cuda.kernels.reference import ReferenceKernels
from blink_persistent.engines.cuda.step_tensors import Workspace
from blink_persistent.gpu.driver import Gpu

pytestmark = pytest.mark.gpu

ARCHITECTURE = replace(ARCHITECTURES["qwen3-30b-a3b"], layers=1)
HOPPER = (9, 0)
TOKENS = (1, 3, 16, 64, 250, 2048)
BFLOAT16 = 5e-3  # ||difference|| / ||expected|| of what is rounded between two products


@pytest.fixture(scope="module")
def weights() -> tuple[Any, Any]:
    torch.manual_seed(2)
    sizes = ARCHITECTURE.experts, ARCHITECTURE.intermediate_size, ARCHITECTURE.hidden_size
    experts, inner, hidden = sizes
    places = {"device": "cuda", "dtype": torch.bfloat16}
    gate_up = torch.randn(experts, 2 * inner, hidden, **places) / hidden**0.5
    return gate_up, torch.randn(experts, hidden, inner, **places) / inner**0.5


@pytest.fixture(scope="module")
def fused() -> FusedKernels:
    """Chained up to 64 tokens, as if all other products were streamed."""
    shapes = product_shapes(ARCHITECTURE)
    return FusedKernels(
        ARCHITECTURE,
        max_rows=64,
        capacity=1024,
        processors=131,
        chained=torch.cuda.get_device_capability(0) >= (9, 0),
        device="cuda",
        cuts={(shape, tile): Cut(features=64) for shape in shapes for tile in ROW_TILES},
    )


def expert_room(tokens: int) -> Any:
    room = Workspace.allocate(ARCHITECTURE, tokens, 1, device="cuda", dtype=torch.bfloat16).experts
    room.parts.fill_(torch.nan)
    return room


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("skewed", [False, True])
def test_experts_are_chosen_and_mixed_as_in_plain_pytorch(
    fused: FusedKernels, weights: tuple[Any, Any], tokens: int, skewed: bool
) -> None:
    """Also where nearly all tokens have the same experts, and some rows take no part."""
    torch.manual_seed(tokens)
    x = torch.randn(tokens, ARCHITECTURE.hidden_size, device="cuda").bfloat16()
    scores = torch.randn(tokens, ARCHITECTURE.experts, device="cuda")
    scores[1:, 7:15] += 20.0 * skewed
    entries = torch.arange(tokens, device="cuda", dtype=torch.int32)
    entries[1::5] = -1
    found = []
    for kernels in (ReferenceKernels(), fused):
        room = expert_room(tokens)
        kernels.choose_experts(scores, entries, room)
        found.append((room, kernels.expert_products(x, *weights, room).float()))
    (plain, expected), (room, parts) = found
    assert torch.equal(room.chosen, plain.chosen)
    torch.testing.assert_close(room.shares, plain.shares)
    active = entries >= 0
    assert parts[:, ~active].isnan().all()
    error = (parts - expected)[:, active].norm() / expected[:, active].norm()
    assert float(error.nan_to_num(nan=torch.inf)) < BFLOAT16


def test_one_token_chooses_its_experts_in_every_block(weights: tuple[Any, Any]) -> None:
    """The kernels of its own, chained and captured: other tokens, and equal scores."""
    if torch.cuda.get_device_capability(0) != HOPPER:
        pytest.skip("the kernels are for compute capability 9.0")
    cut = measured_choices(ARCHITECTURE, HOPPER).one_token_experts
    assert cut is not None
    size, experts = ARCHITECTURE.hidden_size, ARCHITECTURE.experts
    delta, residual = torch.randn(8, 1, size, device="cuda"), torch.randn(1, size, device="cuda")
    router = (torch.randn(experts, size, device="cuda") / size**0.5).bfloat16()
    gain = (torch.rand(size, device="cuda") + 0.5).bfloat16()
    normed, room, reference = torch.empty_like(gain)[None], expert_room(1), ReferenceKernels()
    with Gpu() as gpu:
        one_token = OneTokenExperts(gpu, ARCHITECTURE, cut, device="cuda")

        def step() -> Any:
            given = delta, gain, 1e-6, residual, normed, router
            one_token.route(*given, room, chained=True)
            return one_token.products(normed, *weights, room, chained=True)

        torch.cuda.synchronize()  # another stream does not wait for what was made here
        with torch.cuda.stream(torch.cuda.Stream()):
            step()
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin(capture_error_mode="thread_local")
            parts = step()
            graph.capture_end()
            for seed in range(8):
                torch.manual_seed(seed)
                delta.normal_()
                if seed >= 4:
                    router[seed::2] = router[seed]
                for _ in range(3):
                    room.scores.fill_(torch.nan)  # of the replay before, who reads them too early
                    graph.replay()
                torch.testing.assert_close(parts[0], delta.sum(dim=0), rtol=1e-5, atol=1e-5)
                plain, expected = expert_room(1), torch.empty_like(normed)
                reference.add_norm(delta, gain, 1e-6, residual.clone(), expected)
                torch.testing.assert_close(normed, expected, rtol=2**-7, atol=1e-6)
                scores = normed.float() @ router.float().t()
                torch.testing.assert_close(room.scores, scores, rtol=1e-2, atol=1e-2)
                reference.choose_experts(room.scores, torch.zeros_like(room.chosen[:, 0]), plain)
                wanted = reference.expert_products(normed, *weights, plain).float().sum(dim=0)
                error = (parts[1] - wanted).norm() / wanted.norm()
                assert float(error.nan_to_num(nan=torch.inf)) < BFLOAT16
        torch.cuda.synchronize()
        graph.reset()  # before its kernels are unloaded


def test_a_captured_graph_follows_the_routing(
    fused: FusedKernels, weights: tuple[Any, Any]
) -> None:
    """One graph, replayed with other scores: nothing of the routing is in it."""
    tokens = 16
    room = expert_room(tokens)
    x = torch.randn(tokens, ARCHITECTURE.hidden_size, device="cuda").bfloat16()
    scores = torch.randn(tokens, ARCHITECTURE.experts, device="cuda")
    entries = torch.arange(tokens, device="cuda", dtype=torch.int32)

    def step() -> Any:
        fused.choose_experts(scores, entries, room)
        return fused.expert_products(x, *weights, room)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        parts = step()
    for seed in range(3):
        torch.manual_seed(seed)
        scores.normal_()
        entries[seed] = -1
        graph.replay()
        plain = expert_room(tokens)
        ReferenceKernels().choose_experts(scores, entries, plain)
        expected = ReferenceKernels().expert_products(x, *weights, plain).float()
        active = entries >= 0
        error = (parts.float() - expected)[:, active].norm() / expected[:, active].norm()
        assert float(error.nan_to_num(nan=torch.inf)) < BFLOAT16
