"""A decode step with the measured kernels of every kind is that of plain PyTorch, also captured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from blink_persistent.engines.cuda.architectures import ARCHITECTURES
from blink_persistent.engines.cuda.kernels.ahead.attention import AheadAttention
from blink_persistent.engines.cuda.kernels.ahead.one_token_experts import OneTokenExperts
from blink_persistent.engines.cuda.kernels.ahead.primed_norm import primed_norm_for
from blink_persistent.engines.cuda.kernels.ahead.products import ahead_on
from blink_persistent.engines.cuda.kernels.cuts.hopper import measured_choices
from blink_persistent.engines.cuda.kernels.fused import FusedKernels
from blink_persistent.engines.cuda.kernels.reference import ReferenceKernels
from blink_persistent.engines.cuda.model import Decoder, rotary_tables
from blink_persistent.engines.cuda.step_tensors import KvCache, StepInputs, Workspace, empty_inputs
from blink_persistent.engines.cuda.weights import random_weights
from blink_persistent.gpu.driver import Gpu
from blink_server.importers.checkpoint import Architecture

pytestmark = pytest.mark.gpu

HOPPER = (9, 0)
LLAMA, QWEN, MIXTURE = "llama-3-8b", "qwen3-32b", "qwen3-30b-a3b"
VOCABULARY, MAX_ROWS, MAX_BLOCKS, BLOCK_SIZE = 1024, 64, 32, 64
LENGTHS = (1024, 1, 17, 65, 2047, 500, 63)
BFLOAT16 = 2e-2  # ||difference|| / ||expected|| that bfloat16 arithmetic may make in few layers
OTHER_EXPERT = 1.0  # of a row for which it makes other experts the last that are chosen
PLACES: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}


@pytest.fixture(scope="module")
def decoders(request: pytest.FixtureRequest) -> Iterator[tuple[Decoder, Decoder]]:
    """With the measured kernels, and with plain ones."""
    if torch.cuda.get_device_capability(0) != HOPPER:
        pytest.skip("the kernels are for compute capability 9.0")
    torch.manual_seed(1)
    shape = replace(ARCHITECTURES[request.param], layers=2, vocabulary_size=VOCABULARY)
    choices = measured_choices(shape, HOPPER)
    sizes: dict[str, Any] = {"max_rows": MAX_ROWS, "processors": 131, "device": "cuda"}
    weights, rotary = random_weights(shape, **PLACES), rotary_tables(shape, 2048, device="cuda")
    cache = KvCache.allocate(shape, MAX_ROWS * MAX_BLOCKS, BLOCK_SIZE, **PLACES)
    cache.pages.normal_()
    with Gpu() as gpu:
        experts = None
        if choices.one_token_experts is not None:
            experts = OneTokenExperts(gpu, shape, choices.one_token_experts, device="cuda")
        fused = FusedKernels(
            shape,
            capacity=MAX_BLOCKS * BLOCK_SIZE,
            chained=True,
            cuts=choices.cuts,
            make_ahead=ahead_on(gpu),
            ahead_attention=AheadAttention(gpu, shape, cuts=choices.attentions, **sizes),
            primed_norm=primed_norm_for(gpu, shape.hidden_size, choices.norms),
            one_token_experts=experts,
            **sizes,
        )
        yield (
            Decoder(shape, weights, rotary, cache, workspace(shape), fused),
            Decoder(shape, weights, rotary, cache, workspace(shape), ReferenceKernels()),
        )
        torch.cuda.synchronize()


def workspace(shape: Architecture) -> Workspace:
    return Workspace.allocate(shape, MAX_ROWS, MAX_ROWS, **PLACES)


def inputs() -> StepInputs:
    """Rows of several lengths, whose blocks lie at random places."""
    made = empty_inputs(MAX_ROWS, MAX_ROWS, MAX_BLOCKS, device="cuda")
    made.token_ids.random_(VOCABULARY)
    order = torch.randperm(MAX_ROWS * MAX_BLOCKS, device="cuda").int()
    made.block_tables.copy_(order.view(MAX_ROWS, MAX_BLOCKS))
    lengths = torch.tensor([LENGTHS[row % len(LENGTHS)] for row in range(MAX_ROWS)])
    made.start_positions.copy_(lengths)
    made.lengths.copy_(lengths + 1)
    return made


@pytest.mark.parametrize(
    ("decoders", "rows"),
    [
        *((LLAMA, rows) for rows in (1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 64)),
        *((QWEN, rows) for rows in (1, 9, 16)),
        *((MIXTURE, rows) for rows in (1, 2, 8)),
    ],
    indirect=["decoders"],
)
def test_a_step_is_that_of_plain_pytorch(decoders: tuple[Decoder, Decoder], rows: int) -> None:
    measured, plain = decoders
    given = inputs()
    expected = plain.decode(given, rows).clone()
    torch.cuda.synchronize()  # another stream does not wait for what was made here
    with torch.cuda.stream(torch.cuda.Stream()):
        found = measured.decode(given, rows).clone()
        off = (found - expected).norm(dim=1) / expected.norm(dim=1)
        if measured.architecture.experts:
            assert float((off < BFLOAT16).float().mean()) > 0.5
            assert float(off.max()) < OTHER_EXPERT
        else:
            assert float(off.max()) < BFLOAT16
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(capture_error_mode="thread_local")
        again = measured.decode(given, rows)
        graph.capture_end()
        for _ in range(5):
            again.zero_()
            graph.replay()
            assert torch.equal(again, found)
    torch.cuda.synchronize()
    graph.reset()  # before its kernels are unloaded
