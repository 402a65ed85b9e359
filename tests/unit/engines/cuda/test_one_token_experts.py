"""The experts of a step's only token: Triton interpreted, CUDA C++ lane by lane on this host."""

from __future__ import annotations

import os
import shutil
from types import SimpleNamespace
from typing import Any

import pytest

from blink_server.testing.memory_checkpoint import tiny_architecture

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")
pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")

from blink_persistent.engines.cuda.kernels.ahead.attention import AheadAttention
from blink_persistent.engines.cuda.kernels.ahead.one_token_experts import OneTokenExperts
from blink_persistent.engines.cuda.kernels.ahead.products import ahead_on
from blink_persistent.engines.cuda.kernels.cuts.direct_attention_cut import DirectCut
from blink_persistent.engines.cuda.kernels.cuts.hopper import HOPPER_EXPERTS
from blink_persistent.engines.cuda.kernels.cuts.one_token_cut import (
    ExpertCall,
    OneTokenCut,
    one_token_code,
)
from blink_persistent.engines.cuda.kernels.cuts.primed_cut import PrimedCut
from blink_persistent.engines.cuda.kernels.fused import FusedKernels
from blink_persistent.engines.cuda.kernels.reference import ReferenceKernels
from blink_persistent.engines.cuda.step_tensors import Workspace
from blink_persistent.engines.cuda.weights import random_weights
from blink_persistent.gpu import compile as device_code
from blink_persistent.gpu.structs import layout_assertions
from blink_persistent.testing.paged_decoder import PagedDecoder, Part
from blink_persistent.testing.primed_cuts import likely_cuts
from blink_persistent.testing.primed_host import HostGpu, Way

EXPERTS, CHOSEN, HIDDEN, INNER = 21, 3, 192, 256
SHAPE = tiny_architecture(
    family="qwen3_moe",
    hidden_size=HIDDEN,
    intermediate_size=INNER,
    experts=EXPERTS,
    experts_per_token=CHOSEN,
    **{"heads": 6, "kv_heads": 2, "head_dim": 64, "qk_norm": True},
    **{"vocabulary_size": 150, "layers": 2, "context_length": 256},
)
CUT = OneTokenCut(
    gate=PrimedCut(blocks=3, warps=4, windows=2, stages=2, gated=True), sum_stages=2, scored=4
)
WAYS = [Way(late, seed) for late in (False, True) for seed in (1, 2)]
EPSILON = 1e-6
BFLOAT16 = 2e-2  # ||difference|| / ||expected|| that bfloat16 arithmetic may make in few layers
PLACES: dict[str, Any] = {"device": "cpu", "dtype": torch.bfloat16}

on_host = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
interpreted = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="Triton's interpreter is not used here"
)


@pytest.fixture(autouse=True)
def stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))


def experts_on(gpu: Any) -> OneTokenExperts:
    return OneTokenExperts(gpu, SHAPE, CUT, device="cpu")


def expert_room() -> Any:
    """Where what has not been written is nothing that looks like an answer."""
    room = Workspace.allocate(SHAPE, 2, 1, **PLACES).experts
    room.scores.fill_(torch.nan)
    room.inner.fill_(torch.nan)
    return room


def expert_weights() -> tuple[Any, Any]:
    gate_up = torch.randn(EXPERTS, 2 * INNER, HIDDEN) / HIDDEN**0.5
    down = torch.randn(EXPERTS, HIDDEN, INNER) / INNER**0.5
    return gate_up.bfloat16(), down.bfloat16()


def distance(found: Any, expected: Any) -> float:
    return float((found.float() - expected.float()).norm() / expected.float().norm())


@on_host
@interpreted
@pytest.mark.parametrize("parts", [1, 4])
def test_the_norm_has_the_scores_and_keeps_what_is_to_be_added(parts: int) -> None:
    """`residual` is only read, since all programs read it."""
    delta, residual = torch.randn(parts, 1, HIDDEN), torch.randn(1, HIDDEN)
    router = (torch.randn(EXPERTS, HIDDEN) / HIDDEN**0.5).bfloat16()
    gain, before = (torch.rand(HIDDEN) + 0.5).bfloat16(), residual.clone()
    experts, room = experts_on(HostGpu()), expert_room()
    found, expected = (torch.full((1, HIDDEN), torch.nan).bfloat16() for _ in range(2))
    experts.route(delta, gain, EPSILON, residual, found, router, room, chained=False)
    assert torch.equal(residual, before)
    torch.testing.assert_close(experts._parts[0], delta.sum(dim=0))
    ReferenceKernels().add_norm(delta, gain, EPSILON, residual, expected)
    torch.testing.assert_close(found, expected, rtol=2**-7, atol=1e-6)
    scores = found.float() @ router.float().t()
    torch.testing.assert_close(room.scores[:1], scores, rtol=1e-4, atol=1e-4)
    assert room.scores[1:].isnan().all()


@on_host
@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("scores", ["random", "equal", "nan", "-inf"])
def test_the_products_choose_the_experts_and_are_summed(way: Way, scores: str) -> None:
    """Also among equal scores; scores that are no numbers lead to experts that exist, and to an
    answer that does not look like one. Matrices of other experts are not read."""
    torch.manual_seed(way.seed)
    gpu: Any = HostGpu(way)
    experts, room, plain = experts_on(gpu), expert_room(), expert_room()
    given = torch.randn(1, EXPERTS)
    if scores == "equal":
        given[0, ::2] = 3.0
    if scores == "nan":
        given[0, 5] = torch.nan
    if scores == "-inf":
        given.fill_(-torch.inf)
    room.scores[:1] = given
    (gate_up, down), x = expert_weights(), torch.randn(1, HIDDEN).bfloat16()
    reference = ReferenceKernels()
    reference.choose_experts(given, torch.zeros(1, dtype=torch.int32), plain)
    expected = reference.expert_products(x, gate_up, down, plain).float().sum(dim=0)
    if scores in ("random", "equal"):
        others = torch.ones(EXPERTS, dtype=torch.bool)
        others[plain.chosen[0].long()] = False
        gate_up[others] = down[others] = torch.nan
    attention, found = experts.products(x, gate_up, down, room, chained=True)
    assert attention.eq(0).all()
    shared = CUT.gate.shared_bytes(8), CUT.sum_shared_bytes(CHOSEN, INNER)
    assert [(launch.blocks, launch.threads, launch.shared_bytes) for launch in gpu.launches] == [
        (3 * CHOSEN, 128, shared[0]),
        (HIDDEN // 16, 32 * CHOSEN, shared[1]),
    ]
    assert all(launch.chained for launch in gpu.launches)
    if scores in ("nan", "-inf"):
        assert found.isnan().all()
    else:
        assert distance(found, expected) < BFLOAT16


@on_host
@interpreted
def test_a_decode_step_of_one_row_is_that_of_plain_pytorch() -> None:
    """Layer after layer, with the other kernels of such a step."""
    torch.manual_seed(1)
    gpu: Any = HostGpu()
    sizes: dict[str, Any] = {"max_rows": 8, "processors": 3, "device": "cpu"}
    cuts = {key: cut for key, cut in likely_cuts(SHAPE).items() if key[1] == 8}
    direct = {1: DirectCut(warps=2, programs=4, clustered=True)}
    fused = FusedKernels(
        SHAPE,
        capacity=256,
        chained=False,
        cuts=cuts,
        make_ahead=ahead_on(gpu),
        ahead_attention=AheadAttention(gpu, SHAPE, cuts=direct, **sizes),
        one_token_experts=experts_on(gpu),
        **sizes,
    )
    weights = random_weights(SHAPE, **PLACES)
    cache: Any = None
    found = []
    for kernels in (ReferenceKernels(), fused):
        paged = PagedDecoder.build(SHAPE, weights, kernels, device="cpu")
        pages = paged.decoder.cache.pages
        cache = pages.normal_().clone() if cache is None else pages.copy_(cache)
        found.append((paged.decode([Part((3, 1, 7, 9, 11), 70, (5,))]), pages))
    for expected, other in zip(*found, strict=True):
        assert distance(other, expected) < BFLOAT16
    a_layer = ["product", "cluster", "product", "expert", "expert"]
    kinds = [launch.name.split("_")[1] for launch in gpu.launches]
    assert kinds == [*(a_layer * SHAPE.layers), "product"]


def test_what_was_measured_fits_its_experts() -> None:
    assert HOPPER_EXPERTS
    for (experts, chosen, hidden, inner), cut in HOPPER_EXPERTS.items():
        assert cut.fits(hidden, inner)
        assert experts % cut.scored == 0
        gate, rest = cut.gate.shared_bytes(8), cut.sum_shared_bytes(chosen, inner)
        assert 2 * gate > 227 << 10 > gate + rest


def test_the_kernels_compile_where_there_is_a_device_compiler(device_compiler: None) -> None:
    ((_, chosen, *_), cut), *_ = HOPPER_EXPERTS.items()
    code = device_code.compile_program(
        "one_token_experts_gpu.cu",
        arch="sm_90",
        prologue=one_token_code(cut, chosen),
        epilogue=layout_assertions([ExpertCall]),
    )
    assert b"blink_expert_gate" in code
    assert b"blink_expert_sum" in code
