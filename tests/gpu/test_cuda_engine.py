"""The engine `cuda` on a GPU: kernels, sampler, captured graphs, and the scheduler over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blink_server.testing.memory_checkpoint import (
    MemoryCheckpoint,
    random_checkpoint,
    tiny_architecture,
)

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from blink_persistent.engines.cuda.kernels.ahead.attention import AheadAttention
from blink_persistent.engines.cuda.kernels.ahead.primed_norm import primed_norm_for
from blink_persistent.engines.cuda.kernels.ahead.products import ahead_on
from blink_persistent.engines.cuda.kernels.cuts.choices import AnyAttention
from blink_persistent.engines.cuda.kernels.cuts.direct_attention_cut import DirectCut
from blink_persistent.engines.cuda.kernels.cuts.even_attention_cut import EvenCut
from blink_persistent.engines.cuda.kernels.fused import FusedKernels
from blink_persistent.engines.cuda.kernels.reference import ReferenceKernels
from blink_persistent.engines.cuda.provisioned import CudaProvisioned
from blink_persistent.engines.cuda.weight_file import write_weights
from blink_persistent.engines.cuda.weights import fill_weights
from blink_persistent.gpu.driver import Gpu
from blink_persistent.graph_grid import DECODE, PREFILL, GraphKey, default_grid
from blink_persistent.ring import Reason
from blink_persistent.testing.cuda_harness import CudaHarness, cuda_version, provision
from blink_persistent.testing.greedy import check_greedy
from blink_persistent.testing.paged_decoder import INACTIVE, PagedDecoder, Part
from blink_persistent.testing.primed_cuts import likely_cuts
from blink_persistent.testing.scripted_request import ScriptedRequest
from blink_persistent.testing.scripted_shape import ScriptedShape

pytestmark = pytest.mark.gpu

SIZES = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "vocabulary_size": 1000,
    "context_length": 2048,
}
FAMILIES = {
    "llama": tiny_architecture(**SIZES, heads=8, kv_heads=2, head_dim=128),
    "smollm2": tiny_architecture(  # as wide as it is, so that its products are streamed
        **SIZES | {"hidden_size": 576, "intermediate_size": 1536}, heads=9, kv_heads=3, head_dim=64
    ),
    "qwen2": tiny_architecture(**SIZES, heads=14, kv_heads=2, head_dim=64, attention_bias=True),
    "qwen3": tiny_architecture(**SIZES, heads=8, kv_heads=4, head_dim=128, qk_norm=True),
    "phi": tiny_architecture(**SIZES, heads=8, kv_heads=2, head_dim=64, rotary_dim=48),
    "qwen3_moe": tiny_architecture(  # all experts chosen: rounding would make another choice
        **SIZES | {"intermediate_size": 192},
        **{"family": "qwen3_moe", "experts": 8, "experts_per_token": 8},
        **{"heads": 8, "kv_heads": 2, "head_dim": 64, "qk_norm": True},
    ),
}
EVEN = EvenCut(warps=4, pairs=3, resident=2)
BFLOAT16 = 2e-2  # ||difference|| / ||expected|| that bfloat16 arithmetic may make in few layers


def distance(found: Any, expected: Any) -> float:
    """||found - expected|| / ||expected||; NaN counts as infinite."""
    difference = (found.float() - expected.float()).norm() / expected.float().norm()
    return float(difference.nan_to_num(nan=torch.inf))


@pytest.fixture(params=["measured", "likely"])
def decode_kernels(request: pytest.FixtureRequest) -> str:
    """The engine's option."""
    if request.param == "likely" and torch.cuda.get_device_capability(0) != (9, 0):
        pytest.skip("primed kernels are for compute capability 9.0")
    return str(request.param)


@pytest.fixture
def make_kernels(decode_kernels: str) -> Iterator[Callable[[Any], FusedKernels]]:
    """The fused kernels for an architecture; beside primed products, attention that reads ahead."""
    sizes: dict[str, Any] = {"max_rows": 8, "processors": 131, "device": "cuda"}
    with Gpu() as gpu:

        def make(architecture: Any) -> FusedKernels:
            chosen: dict[str, Any] = {}
            if decode_kernels == "likely":
                cuts: dict[int, AnyAttention] = {1: DirectCut(clustered=True), 8: EVEN}
                chosen = {
                    "cuts": likely_cuts(architecture),
                    "make_ahead": ahead_on(gpu),
                    "ahead_attention": AheadAttention(gpu, architecture, cuts=cuts, **sizes),
                    "primed_norm": primed_norm_for(gpu, architecture.hidden_size),
                }
            return FusedKernels(architecture, capacity=2048, chained=True, **sizes, **chosen)

        yield make
        torch.cuda.synchronize()


@pytest.fixture(params=FAMILIES)
def paged(
    request: pytest.FixtureRequest, make_kernels: Callable[[Any], FusedKernels]
) -> tuple[PagedDecoder, PagedDecoder]:
    """The same random model on the GPU, with fused and with plain kernels, in bfloat16."""
    architecture = FAMILIES[request.param]
    plain = random_checkpoint(architecture, seed=4).dequantized()

    def fill(name: str, part: Any) -> None:
        part.copy_(torch.from_numpy(plain[name]))

    weights = fill_weights(architecture, fill, device="cuda", dtype=torch.bfloat16)
    fused = make_kernels(architecture)
    room: dict[str, Any] = {"device": "cuda", "tokens": 2048, "block_size": 64, "block_count": 200}
    return (
        PagedDecoder.build(architecture, weights, fused, **room),
        PagedDecoder.build(architecture, weights, ReferenceKernels(), **room),
    )


def tokens_of(count: int, seed: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(0, 1000, count).tolist())


def test_fused_steps_agree_with_plain_ones(paged: tuple[PagedDecoder, PagedDecoder]) -> None:
    fused, plain = paged
    texts = [tokens_of(count, count) for count in (1, 700, 130, 64)]
    tables = [tuple(range(1 + 16 * i, 17 + 16 * i)) for i in range(4)]
    for start, end in ((0, 300), (300, 700)):
        parts = [
            Part(table, start, text[start:end])
            for table, text in zip(tables, texts, strict=True)
            if text[start:end]
        ]
        found = fused.prefill(parts, sequences=8, tokens=1024)
        assert distance(found, plain.prefill(parts, sequences=8, tokens=1024)) < BFLOAT16
    for table, text in zip(tables, texts, strict=True):
        entries = fused.entries(table, len(text))
        assert distance(entries, plain.entries(table, len(text))) < BFLOAT16
    rows = [Part(table, len(text), (7,)) for table, text in zip(tables, texts, strict=True)]
    rows.insert(1, INACTIVE)
    busy = [0, 2, 3, 4]
    found, expected = fused.decode(rows, rows=8)[busy], plain.decode(rows, rows=8)[busy]
    assert distance(found, expected) < BFLOAT16
    assert not fused.decoder.cache.pages[:, :, 0].any(), "an inactive row wrote KV"


@pytest.fixture(scope="module")
def checkpoint() -> MemoryCheckpoint:
    """A small model whose weights are bfloat16 values, so that a float32 reference has the same."""
    found = random_checkpoint(FAMILIES["llama"], seed=9)
    for name, tensor in found.tensors.items():
        found.tensors[name] = torch.from_numpy(tensor).bfloat16().float().numpy()
    return found


@pytest.fixture
def serve(
    checkpoint: MemoryCheckpoint, tmp_path: Path, decode_kernels: str
) -> Callable[[int], CudaProvisioned]:
    """Provisions the small model with some number of KV blocks."""
    write_weights(checkpoint, tmp_path / "model.safetensors")

    def start(block_count: int) -> CudaProvisioned:
        version = cuda_version(
            tmp_path,
            engine={
                **{"block_size": 16, "block_count": block_count},
                "decode_kernels": decode_kernels,
            },
            context_length=256,
            memory_fraction=0.5,
        )
        return provision(version, default_grid(16, 256, max_sequences=4))

    return start


SHAPE = ScriptedShape(max_rows=16, context_length=256, vocabulary_size=1000)


def random_prompts(count: int, seed: int) -> dict[int, ScriptedRequest]:
    rng = np.random.default_rng(seed)
    return {
        slot: ScriptedRequest(tokens_of(int(rng.integers(1, 120)), 50 + slot), max_tokens=60)
        for slot in range(count)
    }


@pytest.mark.parametrize("block_count", [400, 90])
def test_the_scheduler_serves_the_model(
    checkpoint: MemoryCheckpoint, serve: Callable[[int], CudaProvisioned], block_count: int
) -> None:
    """With plenty of KV blocks, and with so few that requests are paused and computed again."""
    requests = random_prompts(32, seed=1)
    plain = checkpoint.dequantized()
    with CudaHarness(SHAPE, serve(block_count)) as harness:
        harness.submit(requests)
        harness.scheduler.launch()
        harness.wait_for_ends(requests)
        statuses = harness.statuses()
        outputs = {slot: harness.output(slot) for slot in requests}
        preemptions = harness.ring.field("preemptions")
        assert harness.scheduler.error() is None
    assert (preemptions > 0) == (block_count == 90)
    for slot in requests:
        assert statuses[slot].reason == Reason.MAX_TOKENS
        assert len(outputs[slot]) == 60
    answers = ((request.prompt, outputs[slot]) for slot, request in requests.items())
    check_greedy(checkpoint.architecture, plain, answers)


def test_captured_steps_repeat_and_count(serve: Callable[[int], CudaProvisioned]) -> None:
    engine = serve(100)
    try:
        buffers = engine.tables.buffers[DECODE]
        key = GraphKey(DECODE, 16, 16)
        graph = engine.captured.sources[engine.grid.keys.index(key)]
        graph.instantiate()
        before = engine.gpu.fetch(buffers.completion, np.uint32, 1)[0]
        assert before == 0
        for _ in range(3):
            graph.replay()
        torch.cuda.synchronize()
        assert engine.gpu.fetch(buffers.completion, np.uint32, 1)[0] == 3
        assert engine.gpu.fetch(engine.tables.buffers[PREFILL].completion, np.uint32, 1)[0] == 0
        assert not engine.decoder.cache.pages.any(), "inactive rows wrote KV"
        assert engine.captured.nbytes / len(engine.graphs) < 3 << 20
    finally:
        engine.close()
