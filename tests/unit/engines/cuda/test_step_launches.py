"""Which kernels the engine launches in a step on an H200; nothing is computed."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")
driver = pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")

from blink_persistent.engines.cuda.architectures import ARCHITECTURES
from blink_persistent.engines.cuda.kernels import fused
from blink_persistent.engines.cuda.kernels.ahead.layers import AllLayers
from blink_persistent.engines.cuda.kernels.cuts.choices import StepChoices
from blink_persistent.engines.cuda.kernels.cuts.hopper import (
    HOPPER_LAYERS,
    measured,
    prefills_by_pages,
)
from blink_persistent.engines.cuda.kernels.in_triton import (
    decode_attention,
    grouped,
    located,
    norm,
    prefill_attention,
    rotary,
    routing,
    stream,
    swiglu,
)
from blink_persistent.engines.cuda.kernels.page_attention import PageAttention
from blink_persistent.engines.cuda.model import Decoder, rotary_tables
from blink_persistent.engines.cuda.options import CudaOptions
from blink_persistent.engines.cuda.provisioned import CudaProvisioned, step_choices
from blink_persistent.engines.cuda.step_tensors import KvCache, Workspace, empty_inputs
from blink_persistent.engines.cuda.weights import fill_weights
from blink_persistent.testing.primed_host import HostGpu

HOPPER, PROCESSORS, MAX_ROWS, MAX_BLOCKS, BLOCK_SIZE = (9, 0), 132, 64, 32, 64
MOST_TOKENS = 128
OVERLAP = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
NOWHERE: dict[str, Any] = {"device": "meta", "dtype": torch.bfloat16}


class Told(HostGpu):
    """Tells the names of the kernels that are launched, Triton's too, and which are not chained."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def load(self, source: str, structs: Any, **_: Any) -> Any:
        return SimpleNamespace(function=lambda name: name)

    def call(self, name: str, *arguments: Any) -> Any:
        if name == "cuLaunchKernelEx":
            config, function, *_ = arguments
            self.tell(function, chained=OVERLAP in {attribute.id for attribute in config.attrs})
        return driver.CUtensorMap() if name == "cuTensorMapEncodeTiled" else None

    def tell(self, name: str, *, chained: bool) -> None:
        self.names.append(name if chained else f"{name} alone")

    def stand_in(self, name: str) -> Any:
        def launch(*_: Any, launch_pdl: bool, **options: Any) -> None:
            self.tell(name, chained=launch_pdl)

        class Kernel:
            def __getitem__(self, grid: Any) -> Any:
                return launch

        return Kernel()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Told:
    """An H200 for the engine."""
    told = Told()
    for module, name in (
        (located, "locate_decode"),
        (located, "locate_prefill"),
        (norm, "embed_norm"),
        (norm, "add_norm"),
        (rotary, "rotate_append"),
        (decode_attention, "attend_split"),
        (decode_attention, "combine_splits"),
        (prefill_attention, "attend_tile"),
        (routing, "choose_experts"),
        (routing, "norm_scores"),
        (routing, "sort_pairs"),
        (grouped, "grouped_product"),
        (stream, "stream_product"),
        (swiglu, "swiglu"),
    ):
        monkeypatch.setattr(module, name, told.stand_in(name))
    if PageAttention.fits(ARCHITECTURES["llama-3-8b"]):  # an older Triton cannot import it
        from blink_persistent.engines.cuda.kernels.in_triton import hopper_prefill

        monkeypatch.setattr(hopper_prefill, "attend_pages", told.stand_in("attend_pages"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: HOPPER)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    monkeypatch.setattr(fused, "measured", lambda capability: measured(HOPPER))
    monkeypatch.setattr(
        fused, "prefills_by_pages", lambda shape, capability: prefills_by_pages(shape, HOPPER)
    )
    return told


def decoder_of(gpu: Told, model: str, block_size: int = BLOCK_SIZE, **options: bool) -> Decoder:
    """Of one layer."""
    shape = ARCHITECTURES[model]
    asked = CudaOptions(
        architecture=shape, file=None, block_size=block_size, block_count=None, **options
    )
    engine: Any = SimpleNamespace(
        device=torch.device("meta"),
        gpu=gpu,
        grid=SimpleNamespace(max_rows=MAX_ROWS),
        limits=SimpleNamespace(max_blocks=MAX_BLOCKS),
        _processors=PROCESSORS - 1,
    )
    kernels = CudaProvisioned._kernels(engine, asked, step_choices(asked, HOPPER, PROCESSORS - 1))
    short = replace(shape, layers=1)
    return Decoder(
        architecture=short,
        weights=fill_weights(short, lambda name, part: None, **NOWHERE),
        rotary=rotary_tables(short, 64, device="meta"),
        cache=KvCache.allocate(short, 2, block_size, **NOWHERE),
        work=Workspace.allocate(short, MOST_TOKENS, MAX_ROWS, **NOWHERE),
        kernels=kernels,
    )


def launches(gpu: Told, model: str, rows: int, **options: bool) -> list[str]:
    """Of a decode step."""
    decoder = decoder_of(gpu, model, **options)
    gpu.names.clear()
    decoder.decode(empty_inputs(MAX_ROWS, MAX_ROWS, MAX_BLOCKS, device="meta"), rows)
    return gpu.names


def mixed_attention(gpu: Told, model: str, tokens: int, rows: int) -> list[str]:
    """What a layer of a mixed step has between its first two products."""
    decoder = decoder_of(gpu, model)
    gpu.names.clear()
    packed, alone = (
        empty_inputs(MAX_ROWS, most, MAX_BLOCKS, device="meta") for most in (MOST_TOKENS, MAX_ROWS)
    )
    decoder.mixed(packed, alone, 8, tokens, rows)
    others = "embed_norm", "add_norm", "locate_", "swiglu", "stream_", "blink_wide", "blink_norm"
    return [name for name in gpu.names if not name.startswith(others)]


BEGIN = ["locate_decode", "embed_norm"]
LLAMA = {
    1: [
        *("blink_product_6_1_8_4_7", "blink_cluster_8_128_1", "blink_product_16_1_8_4_3"),
        *("add_norm", "blink_gated_14_1_8_4_3", "blink_product_8_1_8_4_5", "add_norm"),
        "stream_product",
    ],
    16: [
        *("blink_wide_96_16_1_14_1", "blink_even_4_128_2_2", "blink_wide_128_16_1_12_2"),
        *("add_norm", "blink_wide_gated_112_16_1_7_2", "blink_wide_128_16_1_7_2", "add_norm"),
        "blink_wide_112_16_2_7_1",
    ],
    32: [
        *("blink_wide_96_32_1_12_1", "blink_even_4_128_2_2", "blink_wide_64_32_2_8_1"),
        *("add_norm", "blink_wide_gated_56_32_1_7_1", "blink_wide_64_32_2_8_1", "add_norm"),
        "stream_product",
    ],
    64: [
        *("blink_wide_96_64_1_10_1", "blink_even_4_128_2_2", "blink_wide_64_64_2_6_1"),
        *("add_norm", "blink_wide_gated_56_64_2_5_1", "blink_wide_64_64_2_6_1", "add_norm"),
        "stream_product",
    ],
}  # as measured: tests/bench/results/gpu-2026-11-30


@pytest.mark.parametrize("rows", LLAMA)
def test_a_step_of_llama_is_the_one_that_was_measured(gpu: Told, rows: int) -> None:
    assert launches(gpu, "llama-3-8b", rows) == [*BEGIN, *LLAMA[rows]]


@pytest.mark.parametrize(
    ("model", "rows", "vocabulary"),
    [
        ("llama-3-8b", 1, "stream_product"),
        ("llama-3-8b", 9, "blink_wide_112_16_2_7_1"),
        ("qwen3-8b", 16, "stream_product"),
    ],
)
def test_all_layers_of_few_rows_are_one_kernel(
    gpu: Told, model: str, rows: int, vocabulary: str
) -> None:
    """Nothing tells where the rows' tokens are; what follows is placed while it ends."""
    decoder = decoder_of(gpu, model)
    parts = decoder.weights, decoder.rotary, decoder.cache, decoder.work
    whole: Any = gpu
    layers = AllLayers(whole, decoder.architecture, *parts, HOPPER_LAYERS)
    gpu.names.clear()
    inputs = empty_inputs(MAX_ROWS, MAX_ROWS, MAX_BLOCKS, device="meta")
    replace(decoder, all_layers=layers).decode(inputs, rows)
    begun, made, *rest = gpu.names
    most = min(most for most in HOPPER_LAYERS if rows <= most)
    assert begun == "embed_norm"
    assert made == f"{HOPPER_LAYERS[most].kernel_name(most)} alone"
    assert rest == ["add_norm", vocabulary]


@pytest.mark.parametrize(
    ("block_size", "made"), [(16, False), (32, False), (64, True), (128, True)]
)
def test_blocks_of_the_kv_have_to_be_whole_pages(block_size: int, made: bool) -> None:
    found = step_choices(llama(block_size), HOPPER, PROCESSORS - 1)
    assert found.layers == (HOPPER_LAYERS if made else {})
    assert found.cuts


@pytest.mark.parametrize("may_cooperate", [True, False])
def test_where_no_kernel_may_cooperate_steps_are_chains(
    may_cooperate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: HOPPER)
    engine: Any = SimpleNamespace(
        gpu=SimpleNamespace(may_cooperate=may_cooperate), device=None, _processors=PROCESSORS - 1
    )
    found = CudaProvisioned._choices(engine, llama())
    assert found.layers == (HOPPER_LAYERS if may_cooperate else {})
    assert found.cuts


def llama(block_size: int = 64) -> CudaOptions:
    shape = ARCHITECTURES["llama-3-8b"]
    return CudaOptions(architecture=shape, file=None, block_size=block_size, block_count=None)


QWEN_30B = {
    1: [
        *("blink_product_10_1_8_4_3", "blink_cluster_4_128_3", "blink_product_8_1_8_4_4"),
        *("norm_scores", "blink_expert_gate", "blink_expert_sum", "add_norm"),
    ],
    8: [
        *("blink_product_10_1_8_4_3", "blink_even_8_128_4_1", "blink_product_8_1_8_4_4"),
        *("add_norm", "stream_product", "choose_experts", "sort_pairs"),
        *("grouped_product", "grouped_product", "add_norm"),
    ],
    16: [
        *("blink_wide_160_16_1_9_2", "blink_even_8_128_4_1", "blink_wide_128_16_2_6_2"),
        *("add_norm", "stream_product", "choose_experts", "sort_pairs"),
        *("grouped_product", "grouped_product", "add_norm"),
    ],
}


@pytest.mark.parametrize("rows", QWEN_30B)
def test_the_experts_of_one_token_have_kernels_of_their_own(gpu: Told, rows: int) -> None:
    assert launches(gpu, "qwen3-30b-a3b", rows) == [*BEGIN, *QWEN_30B[rows], "stream_product"]


@pytest.mark.parametrize(("rows", "like"), [(9, 16), (17, 32), (33, 64)])
def test_rows_between_have_what_the_next_larger_ones_have(gpu: Told, rows: int, like: int) -> None:
    assert launches(gpu, "llama-3-8b", rows) == [*BEGIN, *LLAMA[like]]


@pytest.mark.parametrize(
    ("rows", "attention"), [(2, "8_128_4_1"), (4, "8_128_4_1"), (5, "4_128_2_2")]
)
def test_few_rows_have_the_products_of_one_and_even_shares(
    gpu: Told, rows: int, attention: str
) -> None:
    qkv, _, *rest = LLAMA[1]
    assert launches(gpu, "llama-3-8b", rows) == [*BEGIN, qkv, f"blink_even_{attention}", *rest]


LIKELY = {
    1: ("blink_product", "blink_cluster_4_128_3", "blink_gated"),
    4: ("blink_product", "blink_even_8_128_4_1", "blink_gated"),
    8: ("blink_product", "blink_even_4_128_2_2", "blink_gated"),
    16: ("blink_wide_", "blink_even_4_128_2_2", "blink_wide_gated"),
    64: ("blink_wide_", "blink_even_4_128_2_2", "blink_wide_gated"),
}


@pytest.mark.parametrize("model", ["qwen3-8b", "qwen2.5-7b"])
@pytest.mark.parametrize("rows", LIKELY)
def test_models_that_were_not_measured_have_what_is_likely(
    gpu: Told, model: str, rows: int
) -> None:
    product, attention, gated = LIKELY[rows]
    kinds = [product, attention, product, "add_norm", gated, product, "add_norm"]
    found = launches(gpu, model, rows)
    assert len(found) == len(BEGIN) + len(kinds) + 1
    for name, kind in zip(found, [*BEGIN, *kinds, "stream_product"], strict=True):
        assert name.startswith(kind)
        assert not name.endswith("alone")


def test_what_was_measured_alone_can_be_asked_for(gpu: Told) -> None:
    found = launches(gpu, "qwen3-8b", 1, likely_kernels=False)
    assert not [name for name in found if name.startswith("blink_")]


def test_what_was_measured_is_likely_the_fastest(gpu: Told) -> None:
    for model in ("llama-3-8b", "smollm2-135m", "qwen3-30b-a3b", "phi-4"):
        assert launches(gpu, model, 1, likely_kernels=False) == launches(gpu, model, 1)


@pytest.mark.parametrize("capability", [(8, 0), (12, 0)])
def test_gpus_with_less_shared_memory_have_no_primed_kernels(capability: tuple[int, int]) -> None:
    asked = CudaOptions(
        architecture=ARCHITECTURES["phi-4"], file=None, block_size=BLOCK_SIZE, block_count=None
    )
    assert step_choices(asked, (10, 0), PROCESSORS).cuts
    assert step_choices(asked, capability, PROCESSORS) == StepChoices()


@pytest.mark.parametrize(
    ("model", "block_size", "kernel"),
    [
        ("llama-3-8b", 64, "attend_pages"),
        ("llama-3-8b", 32, "attend_tile"),
        ("smollm2-135m", 64, "attend_tile"),
    ],
)
def test_prompts_are_attended_to_by_pages_where_that_was_measured_and_they_fit(
    gpu: Told, model: str, block_size: int, kernel: str
) -> None:
    if not PageAttention.fits(ARCHITECTURES[model]):
        kernel = "attend_tile"  # this Triton is too old
    decoder = decoder_of(gpu, model, block_size)
    inputs = empty_inputs(1, MOST_TOKENS, MAX_BLOCKS, device="meta")
    decoder.prefill(inputs, 1, MOST_TOKENS)
    assert [name for name in gpu.names if name.startswith("attend_")] == [f"{kernel} alone"]


@pytest.mark.parametrize(
    ("model", "tokens", "rows", "of_rows"),
    [
        ("llama-3-8b", 96, 32, ["blink_even alone"]),
        ("llama-3-8b", 32, 32, ["blink_even"]),
        ("smollm2-135m", 96, 32, ["attend_split", "combine_splits"]),
    ],
)
def test_rows_of_mixed_steps_have_even_shares_where_decode_steps_have(
    gpu: Told, model: str, tokens: int, rows: int, of_rows: list[str]
) -> None:
    """Chained where all of the step is; Triton's kernels always to one another.

    Where they have not, all tokens are rotated and appended together.
    """
    found = mixed_attention(gpu, model, tokens, rows)
    rotate, attend, *rest = [re.sub(r"(blink_even)[_\d]*", r"\1", name) for name in found]
    assert rest == of_rows
    assert attend.startswith(("attend_pages", "attend_tile"))
    assert rotate.endswith(" alone") == (tokens + rows > 64)
