"""All layers of a decode step in one kernel are those of plain PyTorch, and let others run."""

from __future__ import annotations

import ctypes
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from blink_persistent.engines.cuda.architectures import ARCHITECTURES
from blink_persistent.engines.cuda.kernels.ahead.attention import AheadAttention
from blink_persistent.engines.cuda.kernels.ahead.layers import AllLayers
from blink_persistent.engines.cuda.kernels.ahead.products import ahead_on
from blink_persistent.engines.cuda.kernels.cuts.hopper import HOPPER_LAYERS, measured_choices
from blink_persistent.engines.cuda.kernels.cuts.likely_choices import likely_choices
from blink_persistent.engines.cuda.kernels.fused import FusedKernels
from blink_persistent.engines.cuda.kernels.reference import ReferenceKernels
from blink_persistent.engines.cuda.model import Decoder, rotary_tables
from blink_persistent.engines.cuda.step_tensors import KvCache, Workspace, empty_inputs
from blink_persistent.engines.cuda.weights import LayerWeights, Weights, random_weights
from blink_persistent.gpu import structs
from blink_persistent.gpu.driver import Gpu
from blink_server.importers.checkpoint import Architecture

pytestmark = pytest.mark.gpu

HOPPER, PROCESSORS = (9, 0), 131
MODELS = ("llama-3-8b", "qwen3-8b")
LAYERS, VOCABULARY, MAX_ROWS, MAX_BLOCKS, BLOCK_SIZE, BLOCK_COUNT = 2, 1024, 64, 160, 64, 400
PLACES: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
WATCHDOG = 2_000_000_000  # cycles: about a second
LENGTHS = (1, 63, 64, 65, 700, 1025, 0, 130)
BATCHES = [
    *([1], [64], [65], [1025], [8700], [0]),
    *([700, 0, 65], [8700, 1, 0, 64, 700, 65, 63, 1025]),
    *([LENGTHS[(rows + row) % len(LENGTHS)] for row in range(rows)] for rows in (8, 13, 16)),
    *([1 + 37 * row for row in range(16)], [1025] * 9, [0] * 9),
]
EXACT = 1.5e-2  # ||difference|| / ||expected|| from float32 that bfloat16 may make in few layers
BFLOAT16 = 2e-2  # that it may make of a head, or of logits


def off(found: Any, expected: Any) -> float:
    """The largest ||found - expected|| / ||expected|| of a row; infinite for NaN."""
    difference = (found.float() - expected.float()).norm(dim=-1) / expected.float().norm(dim=-1)
    return float(difference.nan_to_num(nan=torch.inf).max())


class Model:
    """One in memory, with a cache and a workspace of its own: by this kernel, by others."""

    def __init__(self, gpu: Gpu, shape: Architecture, weights: Weights) -> None:
        self.weights = weights
        rotary = rotary_tables(shape, MAX_BLOCKS * BLOCK_SIZE, device="cuda")
        cache = KvCache.allocate(shape, BLOCK_COUNT, BLOCK_SIZE, **PLACES)
        self.pages = cache.pages.normal_()
        self.pages[:, 1] *= 8  # so that what many entries are mixed to counts in the sum
        self.work = Workspace.allocate(shape, MAX_ROWS, MAX_ROWS, **PLACES)
        self.inputs = empty_inputs(MAX_ROWS, MAX_ROWS, MAX_BLOCKS, device="cuda")
        self.inputs.token_ids.random_(VOCABULARY)
        choices = likely_choices(
            shape, measured_choices(shape, HOPPER, PROCESSORS), HOPPER, PROCESSORS
        )
        sizes: dict[str, Any] = {"max_rows": MAX_ROWS, "processors": PROCESSORS, "device": "cuda"}
        kernels = FusedKernels(
            shape,
            capacity=MAX_BLOCKS * BLOCK_SIZE,
            chained=True,
            cuts=choices.cuts,
            make_ahead=ahead_on(gpu),
            ahead_attention=AheadAttention(gpu, shape, cuts=choices.attentions, **sizes),
            **sizes,
        )
        self.chain = Decoder(shape, weights, rotary, cache, self.work, kernels)
        parts = weights, rotary, cache, self.work
        self.layers = AllLayers(gpu, shape, *parts, HOPPER_LAYERS, watchdog_cycles=WATCHDOG)
        self.made = replace(self.chain, all_layers=self.layers)

    def fill(self, lengths: Sequence[int], *, stale: float | None = None) -> list[tuple[int, int]]:
        """Rows with so many entries, the new one included, in blocks at random places.

        What lies behind the old ones becomes `stale`. Returns block and offset of the new ones.
        """
        order = (1 + torch.randperm(BLOCK_COUNT - 1)).tolist()
        tables, new = torch.zeros(MAX_ROWS, MAX_BLOCKS, dtype=torch.int32), []
        for row, length in enumerate(lengths):
            count = -(-length // BLOCK_SIZE)
            blocks, order = order[:count], order[count:]
            tables[row, :count] = torch.tensor(blocks, dtype=torch.int32)
            if length > 0:
                new.append((blocks[-1], (length - 1) % BLOCK_SIZE))
                if stale is not None:
                    self.pages[:, :, blocks[-1], :, (length - 1) % BLOCK_SIZE :] = stale
        after = torch.zeros(MAX_ROWS, dtype=torch.int32)
        after[: len(lengths)] = torch.tensor(lengths, dtype=torch.int32)
        self.inputs.block_tables.copy_(tables)
        self.inputs.lengths.copy_(after)
        self.inputs.start_positions.copy_((after - 1).clamp(min=0))
        return new

    def embed(self, rows: int) -> None:
        self.work.residual[:rows] = self.weights.embedding[self.inputs.token_ids[:rows].long()]

    def exact(self, rows: int) -> tuple[Any, Any]:
        """The residual stream and the pages after a step in float32."""
        shape = self.chain.architecture
        work = Workspace.allocate(shape, rows, rows, device="cuda", dtype=torch.float32)
        cache, kernels = KvCache(self.pages.float()), ReferenceKernels()
        plain = Decoder(shape, exact_weights(self.weights), self.chain.rotary, cache, work, kernels)
        plain.decode(self.inputs, rows)
        return work.residual, cache.pages


def exact_weights(weights: Weights) -> Weights:
    def exact(layer: LayerWeights) -> LayerWeights:
        parts = {each.name: getattr(layer, each.name) for each in fields(LayerWeights)}
        return LayerWeights(**{name: x if x is None else x.float() for name, x in parts.items()})

    layers = tuple(exact(layer) for layer in weights.layers)
    return Weights(weights.embedding.float(), layers, weights.norm.float(), weights.head.float())


def weights_of(shape: Architecture) -> Weights:
    """Random, also their gains."""
    weights = random_weights(shape, **PLACES)
    for layer in weights.layers:
        for gain in (layer.input_norm, layer.inner_norm, layer.q_norm, layer.k_norm):
            if gain is not None:
                gain.uniform_(0.5, 1.5)
    return weights


@pytest.fixture(scope="module")
def gpu() -> Iterator[Gpu]:
    if torch.cuda.get_device_capability(0) != HOPPER:
        pytest.skip("the kernel is for compute capability 9.0")
    with Gpu() as gpu:
        yield gpu
        torch.cuda.synchronize()


@pytest.fixture(scope="module")
def model(gpu: Gpu, request: pytest.FixtureRequest) -> Model:
    torch.manual_seed(1)
    shape = replace(ARCHITECTURES[request.param], layers=LAYERS, vocabulary_size=VOCABULARY)
    return Model(gpu, shape, weights_of(shape))


def of_all_models(function: Any) -> Any:
    return pytest.mark.parametrize("model", MODELS, indirect=True)(function)


@of_all_models
@pytest.mark.parametrize("lengths", BATCHES, ids=lambda x: f"{len(x)}-{max(x)}-{sum(x)}")
def test_the_layers_are_those_of_plain_pytorch(model: Model, lengths: list[int]) -> None:
    rows, kept = len(lengths), model.pages.clone()
    new = model.fill(lengths, stale=torch.nan)
    before, found = model.pages.clone(), []
    for _ in range(3):
        model.pages.copy_(before)
        model.embed(rows)
        model.layers(model.inputs, rows)
        torch.cuda.synchronize()
        assert model.layers.error() == 0
        found.append((model.work.residual[:rows].clone(), model.pages.clone()))
    model.pages.copy_(before)
    residual, pages = model.exact(rows)
    model.pages.copy_(kept)
    assert off(found[0][0], residual) < EXACT
    after = found[0][1]
    for block, offset in new:
        for found_layer, expected in zip(after, pages, strict=True):
            place = slice(None), block, slice(None), offset
            assert off(found_layer[place], expected[place]) < BFLOAT16
        after[:, :, block, :, offset] = before[:, :, block, :, offset]
    assert torch.equal(bits(after), bits(before)), "something else of the KV was written"
    for block, offset in new:
        after[:, :, block, :, offset] = found[1][1][:, :, block, :, offset]
    for other in found[1:]:
        assert torch.equal(other[0], found[0][0]), "launches differ"
        assert torch.equal(bits(other[1]), bits(after)), "launches differ in the KV"


def bits(values: Any) -> Any:
    """So that NaN is as NaN."""
    return values.view(torch.int16)


@of_all_models
@pytest.mark.parametrize("rows", [1, 3, 8, 13, 16, 17])
def test_a_step_is_that_of_the_other_kernels_in_a_graph_too(model: Model, rows: int) -> None:
    """Of 17 rows it is theirs."""
    model.fill([LENGTHS[row % len(LENGTHS)] for row in range(rows)])
    expected = model.chain.decode(model.inputs, rows).clone()
    torch.cuda.synchronize()  # another stream does not wait for what was made here
    with torch.cuda.stream(torch.cuda.Stream()):
        found = model.made.decode(model.inputs, rows).clone()
        assert off(found, expected) < BFLOAT16
        assert torch.equal(found, expected) == (rows > 16)
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(capture_error_mode="thread_local")
        again = model.made.decode(model.inputs, rows)
        graph.capture_end()
        for _ in range(5):
            again.zero_()
            graph.replay()
            assert torch.equal(again, found)
    torch.cuda.synchronize()
    assert model.layers.error() == 0
    graph.reset()  # before its kernels are unloaded


def await_end(stream: Any, seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not stream.query():
        assert time.monotonic() < deadline, f"{what} did not end"
        time.sleep(0.001)


@pytest.mark.parametrize("model", ["llama-3-8b"], indirect=True)
def test_two_at_a_time_take_turns(model: Model, gpu: Gpu) -> None:
    """There is room for the blocks of one alone, and each waits for all of its own."""
    both = model, Model(gpu, model.chain.architecture, model.weights)
    streams, launches, rows = [torch.cuda.Stream() for _ in both], 200, (3, 16)
    expected = []
    for each, count in zip(both, rows, strict=True):
        each.fill([LENGTHS[row % len(LENGTHS)] for row in range(count)])
        each.embed(count)
        for _ in range(launches):
            each.layers(each.inputs, count)
        torch.cuda.synchronize()
        expected.append(each.work.residual[:count].clone())
        each.embed(count)
    torch.cuda.synchronize()
    for _, (each, count, stream) in itertools.product(
        range(launches), list(zip(both, rows, streams, strict=True))
    ):
        with torch.cuda.stream(stream):
            each.layers(each.inputs, count)
    for each, count, stream, wanted in zip(both, rows, streams, expected, strict=True):
        await_end(stream, 30, "one of two")
        assert each.layers.error() == 0
        assert torch.equal(each.work.residual[:count], wanted)


@pytest.mark.parametrize("model", ["llama-3-8b"], indirect=True)
def test_it_gets_its_turn_beside_chains_of_kernels(model: Model, gpu: Gpu) -> None:
    """Whose blocks are there before those of the kernel ahead have left."""
    other, rows, launches = Model(gpu, model.chain.architecture, model.weights), 16, 100
    for each in (model, other):
        each.fill([LENGTHS[row % len(LENGTHS)] for row in range(rows)])
    expected = other.chain.decode(other.inputs, rows).clone()
    torch.cuda.synchronize()
    own, neighbour = torch.cuda.Stream(), torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(neighbour):
        graph.capture_begin(capture_error_mode="thread_local")
        logits = other.chain.decode(other.inputs, rows)
        graph.capture_end()
        for _ in range(40 * launches):  # far longer than the others take alone
            graph.replay()
    with torch.cuda.stream(own):
        for _ in range(launches):
            model.layers(model.inputs, rows)
    await_end(own, 30, "steps beside chains of kernels")
    assert not neighbour.query(), "they waited for the end of all others"
    await_end(neighbour, 30, "chains of kernels")
    assert model.layers.error() == 0
    assert torch.equal(logits, expected)
    graph.reset()


STAY = """
// As large as a resident scheduler's block: tells the host its multiprocessor, and stays until the
// host says stop, or for 10 s.
extern "C" __global__ void __launch_bounds__(256, 1) stay(volatile int* places, const volatile int* stop) {
    constexpr int kFloats = 102;
    __shared__ float room[468];
    float values[kFloats];
    unsigned long long begin, now;
    int place;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin)::"memory");
    asm volatile("mov.u32 %0, %%smid;" : "=r"(place));
#pragma unroll
    for (int i = 0; i < kFloats; ++i) values[i] = static_cast<float>(i * threadIdx.x);
    if (threadIdx.x == 0) places[blockIdx.x] = 1 + place;
    do {
#pragma unroll
        for (int i = 0; i < kFloats; ++i) asm volatile("" : "+f"(values[i]));
        __nanosleep(500);
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
    } while (*stop == 0 && now - begin < 10000000000ull);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kFloats; ++i) sum += values[i];
    room[threadIdx.x] = sum;
    __syncthreads();
    if (room[255 - threadIdx.x] == -1.0f) places[0] = -1;
}
"""  # noqa: E501
THREADS = 256


def takes(gpu: Gpu, function: Any) -> tuple[int, int]:
    """Registers of a thread, rounded up as they are given, and bytes of shared memory."""
    kind = gpu.driver.CUfunction_attribute
    names = kind.CU_FUNC_ATTRIBUTE_NUM_REGS, kind.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
    registers, shared = (gpu.call("cuFuncGetAttribute", name, function) for name in names)
    return -(-registers // 8) * 8, shared


@pytest.mark.parametrize("model", ["llama-3-8b"], indirect=True)
def test_it_runs_beside_a_scheduler_on_every_multiprocessor(
    model: Model, gpu: Gpu, tmp_path: Path
) -> None:
    (tmp_path / "stay.cu").write_text(STAY)
    stay = gpu.load(str(tmp_path / "stay.cu"), ()).function("stay")
    share = gpu.driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
    gpu.call("cuFuncSetAttribute", stay, share, 100)
    scheduler = gpu.load("scheduler_gpu.cu", structs.SCHEDULER_STRUCTS).function("blink_scheduler")
    assert all(a >= b for a, b in zip(takes(gpu, stay), takes(gpu, scheduler), strict=True))
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    memory, address = gpu.host_memory(4 * (processors + 1))
    words: Any = memory.view(np.int32)
    places, stop = words[:processors], words[processors:]
    pointers = (address, ctypes.c_uint64), (address + 4 * processors, ctypes.c_uint64)
    model.fill([LENGTHS[row % len(LENGTHS)] for row in range(16)])
    own, other = torch.cuda.Stream(), gpu.new_stream()
    for rows in (*HOPPER_LAYERS, 1):  # the first launch of each waits for its end
        model.layers(model.inputs, rows)
    torch.cuda.synchronize()
    stop[0] = 1
    gpu.launch(stay, processors, THREADS, other, *pointers)
    stop[0] = places[:] = 0
    gpu.launch(stay, processors, THREADS, other, *pointers)
    try:
        deadline = time.monotonic() + 5
        while not places.all():
            assert time.monotonic() < deadline, "the others did not begin"
        assert len(set(places.tolist())) == processors
        for rows in (*HOPPER_LAYERS, 1):
            with torch.cuda.stream(own):
                model.layers(model.inputs, rows)
            await_end(own, 3, f"the step of {rows} rows")
    finally:
        stop[0] = 1
        gpu.call("cuStreamSynchronize", other)
    assert model.layers.error() == 0
