"""All layers of a decode step in one kernel: how it is launched, and the step around it."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
driver = pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")

from blink_persistent.engines.cuda.architectures import ARCHITECTURES
from blink_persistent.engines.cuda.kernels.ahead.layers import AllLayers
from blink_persistent.engines.cuda.kernels.cuts.hopper import HOPPER_LAYERS
from blink_persistent.engines.cuda.kernels.cuts.layers_cut import (
    BLOCKS,
    THREADS,
    LayerFeatures,
    LayersCall,
)
from blink_persistent.engines.cuda.kernels.cuts.wide_cut import ALIGNMENT
from blink_persistent.engines.cuda.model import Decoder, rotary_tables
from blink_persistent.engines.cuda.step_tensors import (
    KvCache,
    StepInputs,
    Workspace,
    empty_inputs,
)
from blink_persistent.engines.cuda.weights import Weights, fill_weights
from blink_persistent.testing.paged_decoder import INACTIVE, Part
from blink_persistent.testing.primed_host import HostGpu
from blink_server.importers.checkpoint import Architecture

LLAMA, QWEN = ARCHITECTURES["llama-3-8b"], ARCHITECTURES["qwen3-8b"]


@dataclass(frozen=True)
class EncodedMap:
    """What a tensor map was made of."""

    address: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]


@dataclass(frozen=True)
class LaunchedLayers:
    """A launch's parameters, and how it was made."""

    name: str
    blocks: int
    threads: int
    shared_bytes: int
    attributes: frozenset[Any]
    inputs: tuple[EncodedMap, ...]
    weights: int
    pages: int
    call: Any


class TellingGpu(HostGpu):
    """Launches nothing. What stands for a tensor map is its number among those that were made."""

    def __init__(self) -> None:
        super().__init__()
        self.maps: list[EncodedMap] = []
        self.launched: list[LaunchedLayers] = []
        self.architecture_alone = False

    def load(self, source: str, structs: Any, *, prologue: str, **options: Any) -> Any:
        assert source == "layers_gpu.cu"
        self.architecture_alone = options["of_this_architecture"]
        return SimpleNamespace(function=lambda name: name)

    def call(self, name: str, *arguments: Any) -> Any:
        if name == "cuTensorMapEncodeTiled":
            _, _, address, *sides = arguments
            made = driver.CUtensorMap()
            sizes, strides, box, steps = (tuple(map(int, side)) for side in sides[:4])
            assert set(steps) == {1}
            ctypes.c_uint64.from_address(int(made.getPtr())).value = len(self.maps)
            self.maps.append(EncodedMap(address, sizes, strides, box))
            return made
        if name == "cuLaunchKernelEx":
            config, function, places, _ = arguments
            at = (ctypes.c_uint64 * 4).from_address(places)
            weights, pages = (ctypes.c_uint64.from_address(place).value for place in at[1:3])
            self.launched.append(
                LaunchedLayers(
                    function,
                    config.gridDimX,
                    config.blockDimX,
                    config.sharedMemBytes,
                    frozenset(attribute.id for attribute in config.attrs),
                    self.maps_at(at[0], 4),
                    weights,
                    pages,
                    LayersCall.from_buffer_copy(LayersCall.from_address(at[3])),
                )
            )
        return None

    def maps_at(self, address: int, count: int) -> tuple[EncodedMap, ...]:
        """Those that lie there."""
        numbers = (ctypes.c_uint64 * (16 * count)).from_address(address)[::16]
        return tuple(self.maps[number] for number in numbers)


@dataclass
class Model:
    """Of two layers, whose weights are not written."""

    shape: Architecture
    weights: Weights
    cache: KvCache
    work: Workspace
    inputs: StepInputs
    gpu: TellingGpu
    layers: AllLayers

    @classmethod
    def of(cls, architecture: Architecture) -> Model:
        shape = replace(architecture, layers=2, vocabulary_size=8)
        places: dict[str, Any] = {"device": "cpu", "dtype": torch.bfloat16}
        weights = fill_weights(shape, lambda name, part: None, **places)
        cache, work = (
            KvCache.allocate(shape, 3, 64, **places),
            Workspace.allocate(shape, 40, 40, **places),
        )
        gpu: Any = TellingGpu()
        rotary = rotary_tables(shape, 128, device="cpu")
        layers = AllLayers(gpu, shape, weights, rotary, cache, work, HOPPER_LAYERS)
        inputs = empty_inputs(40, 40, 7, device="cpu")
        return cls(shape, weights, cache, work, inputs, gpu, layers)


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))


def test_it_takes_steps_of_as_many_rows_as_it_has_cuts_for(stream: None) -> None:
    model = Model.of(LLAMA)
    assert model.gpu.architecture_alone
    assert [rows for rows in range(1, 65) if model.layers.takes(rows)] == list(range(1, 17))
    for rows in (1, 8, 9, 16):
        model.layers(model.inputs, rows)
    most = [int(launch.name.split("_")[2]) for launch in model.gpu.launched]
    assert most == [8, 8, 16, 16]
    features = LayerFeatures.of(LLAMA)
    for rows, launch in zip(most, model.gpu.launched, strict=True):
        shared = HOPPER_LAYERS[rows].shared_bytes(rows, features) + ALIGNMENT
        assert (launch.blocks, launch.threads, launch.shared_bytes) == (BLOCKS, THREADS, shared)
        assert launch.attributes == {driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE}


@pytest.mark.parametrize("shape", [LLAMA, QWEN], ids=["llama", "qwen"])
def test_the_kernel_is_told_where_everything_is(shape: Architecture, stream: None) -> None:
    model, rows = Model.of(shape), 13
    model.layers(model.inputs, rows)
    (launch,) = model.gpu.launched
    work, call, attention = model.work, launch.call, launch.call.attention
    for name in ("residual", "normed", "inner"):
        assert getattr(call, name) == getattr(work, name).data_ptr()
    assert attention.out == work.mixed.data_ptr()
    assert attention.lengths == model.inputs.lengths.data_ptr()
    assert attention.tables == model.inputs.block_tables.data_ptr()
    for name in ("rounded", "bias", "q_norm", "k_norm", "keys", "values"):
        assert getattr(attention, name) == 0, "is of a layer, or there is none"
    for name in ("qkv", "cos", "sin", "partial", "log_sums", "arrived"):
        assert getattr(attention, name) != 0
    assert bool(call.head_gains) == shape.qk_norm
    assert (attention.parts, attention.rows, attention.part_rows) == (1, rows, rows)
    assert (attention.heads, attention.kv_heads) == (shape.heads, shape.kv_heads)
    assert (attention.max_blocks, attention.block_size) == (7, 64)
    assert (call.layers, call.blocks, call.early, call.flight, call.paged) == (2, 128, 2, 7, 2)
    keys_and_values = [pages.data_ptr() for number in (0, 1) for pages in model.cache.layer(number)]
    assert (ctypes.c_uint64 * 4).from_address(call.pages)[:] == keys_and_values


def test_gains_lie_in_the_order_of_the_norms(stream: None) -> None:
    model = Model.of(QWEN)
    for number, layer in enumerate(model.weights.layers):
        parts = layer.input_norm, layer.inner_norm, layer.q_norm, layer.k_norm
        for place, part in enumerate(parts):
            part.fill_(1 + number + place / 4)
    again = AllLayers(
        model.gpu,  # type: ignore[arg-type]
        *(model.shape, model.weights, rotary_tables(model.shape, 128, device="cpu")),
        *(model.cache, model.work, HOPPER_LAYERS),
    )
    again(model.inputs, 1)
    call, size = model.gpu.launched[-1].call, model.shape.hidden_size
    gains = (ctypes.c_float * (4 * size)).from_address(call.gains)
    assert gains[::size] == [1.0, 1.25, 2.0, 2.25]
    heads = (ctypes.c_uint16 * (4 * 128)).from_address(call.head_gains)
    expected = torch.tensor([1.5, 1.75, 2.5, 2.75]).bfloat16().view(torch.int16)
    assert heads[::128] == expected.tolist()


@pytest.mark.parametrize("shape", [LLAMA, QWEN], ids=["llama", "qwen"])
def test_maps_are_those_of_every_product_and_of_the_pages(
    shape: Architecture, stream: None
) -> None:
    model, rows = Model.of(shape), 13
    model.layers(model.inputs, rows)
    (launch,) = model.gpu.launched
    queries, inner = shape.heads * shape.head_dim, shape.intermediate_size
    q, o, g, d = 3, 5, 1, 5
    work = model.work
    inputs = [
        (work.normed, 4096, q),
        (work.mixed, queries, o),
        (work.normed, 4096, g),
        (work.inner, inner, d),
    ]
    assert launch.inputs == tuple(
        EncodedMap(
            x.data_ptr(),
            (64, rows, 1, depth // 64),
            (2 * depth, 2 * depth * rows, 128),
            (64, 16, 1, windows),
        )
        for x, depth, windows in inputs
    )
    expected = []
    for layer in model.weights.layers:
        products = [
            (layer.qkv, 6144, 4096, 1, 48, q),
            (layer.output, 4096, queries, 1, 32, o),
            (layer.gate_up, inner, 4096, 2, inner // 128, g),
            (layer.down, 4096, inner, 1, 32, d),
        ]
        expected += [
            EncodedMap(
                weight.data_ptr(),
                (64, size, parts, depth // 64),
                (2 * depth, 2 * depth * size, 128),
                (64, box, parts, windows),
            )
            for weight, size, depth, parts, box, windows in products
        ]
    assert model.gpu.maps_at(launch.weights, 8) == tuple(expected)
    entries = 3 * shape.kv_heads * 64
    assert model.gpu.maps_at(launch.pages, 4) == tuple(
        EncodedMap(
            pages.data_ptr(),
            (64, entries, 1, 2),
            (256, 256 * entries, 128),
            (64, 64, 1, 2),
        )
        for number in (0, 1)
        for pages in model.cache.layer(number)
    )


class OtherLayers:
    """Fulfils `StepLayers` by another decoder, of the same cache, for few rows."""

    def __init__(self, decoder: Decoder, work: Workspace) -> None:
        self._decoder, self._work, self.steps = decoder, work, 0

    def takes(self, rows: int) -> bool:
        return rows <= 4

    def __call__(self, inputs: StepInputs, rows: int) -> None:
        embedded = self._decoder.weights.embedding[inputs.token_ids[:rows].long()]
        assert torch.equal(self._work.residual[:rows], embedded)
        self._decoder.decode(inputs, rows)
        self._work.residual[:rows] = self._decoder.work.residual[:rows]
        for scratch in (self._work.normed, self._work.mixed, self._work.inner):
            scratch.fill_(torch.nan)
        self.steps += 1


def test_a_step_around_layers_that_are_made_at_once(make_case: Any) -> None:
    case = make_case()
    plain = case.paged.decoder
    work = Workspace.allocate(plain.architecture, 72, 16, device="cpu", dtype=torch.float32)
    layers = OtherLayers(plain, work)
    paged = replace(case.paged, decoder=replace(plain, work=work, all_layers=layers))
    texts, tables = [case.tokens(count) for count in (15, 40)], [(5, 17), (30, 2, 9)]
    for table, text in zip(tables, texts, strict=True):
        paged.prefill([Part(table, 0, text[:-1])])
    assert layers.steps == 0
    first, second = (
        Part(table, len(text) - 1, text[-1:]) for table, text in zip(tables, texts, strict=True)
    )
    for rows, steps in ((3, 1), (4, 2), (8, 2)):
        found = paged.decode([first, INACTIVE, second], rows=rows)
        assert layers.steps == steps
        for row, text in ((0, texts[0]), (2, texts[1])):
            case.close_to(found[row], case.expect(text).logits[-1])
