"""Mixed steps of the engine `cuda` on a GPU: against plain ones, and served by the scheduler."""

from __future__ import annotations

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
from blink_persistent.engines.cuda.kernels.cuts.even_attention_cut import EvenCut
from blink_persistent.engines.cuda.kernels.fused import FusedKernels
from blink_persistent.engines.cuda.kernels.reference import ReferenceKernels
from blink_persistent.engines.cuda.provisioned import CudaProvisioned
from blink_persistent.engines.cuda.weight_file import write_weights
from blink_persistent.engines.cuda.weights import fill_weights
from blink_persistent.gpu.driver import Gpu
from blink_persistent.graph_grid import default_grid
from blink_persistent.ring import Reason
from blink_persistent.testing.cuda_harness import (
    CudaHarness,
    HostDrivenCudaHarness,
    cuda_version,
    provision,
)
from blink_persistent.testing.greedy import check_greedy
from blink_persistent.testing.paged_decoder import INACTIVE, PagedDecoder, Part
from blink_persistent.testing.scripted_request import ScriptedRequest
from blink_persistent.testing.scripted_shape import ScriptedShape

pytestmark = pytest.mark.gpu

# As wide as SmolLM2, so that the products of few tokens are streamed.
MODEL = tiny_architecture(
    hidden_size=576, intermediate_size=1536, heads=9, kv_heads=3, head_dim=64,
    vocabulary_size=1000, context_length=2048,
)  # fmt: skip
SHAPE = ScriptedShape(max_rows=16, context_length=256, vocabulary_size=1000)
BFLOAT16 = 2e-2  # ||difference|| / ||expected|| that bfloat16 arithmetic may make in few layers


def distance(found: Any, expected: Any) -> float:
    """||found - expected|| / ||expected||; NaN counts as infinite."""
    difference = (found.float() - expected.float()).norm() / expected.float().norm()
    return float(difference.nan_to_num(nan=torch.inf))


def tokens_of(count: int, seed: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(0, 1000, count).tolist())


def paged_decoders(
    rows: int = 16, attention: AheadAttention | None = None
) -> tuple[PagedDecoder, PagedDecoder]:
    """The same random model with fused and with plain kernels, in bfloat16."""
    plain = random_checkpoint(MODEL, seed=4).dequantized()

    def fill(name: str, part: Any) -> None:
        part.copy_(torch.from_numpy(plain[name]))

    weights = fill_weights(MODEL, fill, device="cuda", dtype=torch.bfloat16)
    fused = FusedKernels(
        MODEL,
        max_rows=rows,
        capacity=2048,
        processors=131,
        chained=True,
        device="cuda",
        ahead_attention=attention,
    )
    room: dict[str, Any] = {
        "device": "cuda",
        "rows": rows,
        "tokens": 1024,
        "block_size": 64,
        "block_count": 512,
    }
    return (
        PagedDecoder.build(MODEL, weights, fused, **room),
        PagedDecoder.build(MODEL, weights, ReferenceKernels(), **room),
    )


@pytest.mark.parametrize("tokens", [16, 48, 300, 1000])
def test_a_mixed_step_agrees_with_a_plain_one(tokens: int) -> None:
    """With streamed products and with the library's; a later chunk, a prompt and rows."""
    both = paged_decoders()
    texts = [tokens_of(count, count) for count in (1, 700, 130)]
    tables = [tuple(range(1 + 18 * i, 19 + 18 * i)) for i in range(5)]
    rows = [Part(table, len(t) - 1, t[-1:]) for table, t in zip(tables, texts, strict=False)]
    before = [Part(table, 0, text[:-1]) for table, text in zip(tables, texts, strict=False)]
    chunk = tokens_of(90 + tokens - 7, 5)
    for decoder in both:
        decoder.prefill([*before[1:], Part(tables[3], 0, chunk[:90])])
    packed = [Part(tables[3], 90, chunk[90:]), Part(tables[4], 0, tokens_of(5, 6))]
    rows.insert(1, INACTIVE)
    key = (4, tokens, 16)
    found, expected = (decoder.mixed(packed, rows, key=key) for decoder in both)
    assert distance(found[0], expected[0]) < BFLOAT16
    assert distance(found[1][[0, 2, 3]], expected[1][[0, 2, 3]]) < BFLOAT16
    length = len(chunk)
    entries = (decoder.entries(tables[3], length) for decoder in both)
    assert distance(*entries) < BFLOAT16
    assert not both[0].decoder.cache.pages[:, :, 0].any(), "an inactive row wrote KV"


class Counted(AheadAttention):
    """Knows how often it attended."""

    calls = 0

    def __call__(self, *arguments: Any, **options: Any) -> None:
        super().__call__(*arguments, **options)
        self.calls += 1


@pytest.mark.parametrize("rows", [16, 32])
@pytest.mark.parametrize("tokens", [16, 256, 600])
def test_rows_of_a_mixed_step_have_attention_in_even_shares(tokens: int, rows: int) -> None:
    """Beside later chunks of eight prompts, with streamed products and with the library's."""
    if torch.cuda.get_device_capability(0) != (9, 0):
        pytest.skip("the kernel is for compute capability 9.0")
    blocks = iter(range(1, 512))

    def part(start: int, count: int, seed: int) -> Part:
        table = tuple(next(blocks) for _ in range(-(-(start + count) // 64)))
        return Part(table, start, tokens_of(count, seed))

    starts, before = (0, 90, 5, 64, 200, 63, 1, 33), (0, 699, 129, 64, 63, 300, 1)
    packed = [part(start, (tokens - 3 + i) // 8, i) for i, start in enumerate(starts)]
    alone = [part(before[row % len(before)], 1, row) for row in range(rows)]
    alone[5] = INACTIVE
    active = [row for row in range(rows) if row != 5]
    with Gpu() as gpu:
        sizes: dict[str, Any] = {"max_rows": rows, "processors": 131, "device": "cuda"}
        cut = EvenCut(warps=4, pairs=2, resident=2)
        attention = Counted(gpu, MODEL, cuts={rows: cut}, **sizes)
        both = paged_decoders(rows, attention)
        fused, plain = (paged.decoder.cache.pages for paged in both)
        plain.copy_(fused.normal_())
        found, expected = (paged.mixed(packed, alone, key=(8, tokens, rows)) for paged in both)
        torch.cuda.synchronize()
    assert attention.calls == MODEL.layers
    assert distance(found[0], expected[0]) < BFLOAT16
    assert distance(found[1][active], expected[1][active]) < BFLOAT16
    for one in (*packed, *(alone[row] for row in active)):
        end = one.start + len(one.token_ids)
        entries = (paged.entries(one.blocks, end)[:, :, one.start :] for paged in both)
        assert distance(*entries) < BFLOAT16


@pytest.fixture(scope="module")
def checkpoint() -> MemoryCheckpoint:
    """Weights that bfloat16 holds, so that a float32 reference has the same."""
    found = random_checkpoint(MODEL, seed=9)
    for name, tensor in found.tensors.items():
        found.tensors[name] = torch.from_numpy(tensor).bfloat16().float().numpy()
    return found


def serve(checkpoint: MemoryCheckpoint, directory: Path, block_count: int) -> CudaProvisioned:
    write_weights(checkpoint, directory / "model.safetensors")
    version = cuda_version(
        directory,
        engine={"block_size": 16, "block_count": block_count},
        context_length=256,
        memory_fraction=0.5,
        prefill_chunk=64,
    )
    return provision(version, default_grid(16, 256, max_sequences=4, max_mixed_tokens=64))


@pytest.mark.parametrize("harness_of", [CudaHarness, HostDrivenCudaHarness])
@pytest.mark.parametrize("block_count", [400, 90])
def test_prompts_are_read_while_others_decode(
    checkpoint: MemoryCheckpoint, tmp_path: Path, harness_of: type[CudaHarness], block_count: int
) -> None:
    """With plenty of KV blocks, and with so few that requests are paused and computed again."""
    rng = np.random.default_rng(1)
    requests = {
        slot: ScriptedRequest(tokens_of(int(rng.integers(1, 180)), 50 + slot), max_tokens=60)
        for slot in range(32)
    }
    plain = checkpoint.dequantized()
    with harness_of(SHAPE, serve(checkpoint, tmp_path, block_count)) as harness:
        harness.submit(requests)
        harness.scheduler.launch()
        harness.wait_for_ends(requests)
        statuses = harness.statuses()
        outputs = {slot: harness.output(slot) for slot in requests}
        assert harness.ring.field("mixed_launches") > 10
        assert (harness.ring.field("preemptions") > 0) == (block_count == 90)
    assert all(statuses[slot].reason == Reason.MAX_TOKENS for slot in requests)
    answers = ((request.prompt, outputs[slot]) for slot, request in requests.items())
    check_greedy(checkpoint.architecture, plain, answers)
