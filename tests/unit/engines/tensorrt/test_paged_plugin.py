"""The plugin's Python side over the classes of a real TensorRT module; no GPU, so no launch."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any

import pytest

from blink_persistent.engines.tensorrt import paged_plugin
from blink_persistent.engines.tensorrt.attention_launches import AttentionShape, Launch
from blink_persistent.engines.tensorrt.kernel_archive import CompiledKernel, Role
from blink_persistent.engines.tensorrt.paged_plugin import (
    CU_SEQLENS,
    INPUTS,
    KEY_POOL,
    KEY_POOL_OUT,
    LENGTHS,
    MIXED,
    NAME,
    NAMESPACE,
    OUTPUTS,
    QUERIES,
    STARTS,
    TABLES,
    VALUE_POOL,
    VALUE_POOL_OUT,
    VERSION,
    PluginState,
)
from blink_persistent.engines.tensorrt.plugin_attention import PYTHON, plugin_creator
from blink_server.errors import EngineFailure

trt = pytest.importorskip("tensorrt_rtx_bindings", reason="TensorRT for RTX is not installed")

SHAPE = AttentionShape(heads=8, kv_heads=2, head_dim=64, block_size=64, programs=5, scale=0.25)
KERNELS = tuple(
    CompiledKernel(role, variant, 4, 1024, role.name.lower(), bytes([role, variant]) * 999)
    for role, variant in (
        *((Role.APPEND_ROWS, 0), (Role.APPEND_PACKED, 0)),
        *((Role.ATTEND_ROWS, 1), (Role.ATTEND_ROWS, 4), (Role.COMBINE_ROWS, 4)),
        *((Role.ATTEND_PACKED, 16), (Role.ATTEND_PACKED, 32)),
    )
)
ROWS, MAX_BLOCKS = 3, 16


def made(*, aliased: bool = True, phase: str = "BUILD") -> Any:
    """A plugin as TensorRT makes it, through its registry."""
    fields = PluginState(SHAPE, KERNELS, aliased).fields(trt)
    creator = trt.get_plugin_registry().get_creator(NAME, VERSION, NAMESPACE)
    return creator.create_plugin("layer", fields.collection, getattr(trt.TensorRTPhase, phase))


@pytest.fixture(autouse=True)
def _registered() -> None:
    plugin_creator(trt, PYTHON)


def test_a_plan_keeps_all_that_a_layer_needs() -> None:
    plugin = made().clone()
    gc.collect()
    again = PluginState.from_fields(plugin.get_fields_to_serialize())
    assert again == PluginState(SHAPE, KERNELS, True)
    assert (plugin.plugin_name, plugin.plugin_version, plugin.num_outputs) == (NAME, "1", OUTPUTS)


def test_fields_that_are_missing_are_named() -> None:
    fields = PluginState(SHAPE, KERNELS, True).fields(trt).collection
    kept = trt.PluginFieldCollection([field for field in fields if field.name != "scale"])
    with pytest.raises(ValueError, match="has no field 'scale'"):
        PluginState.from_fields(kept)


def test_pools_are_written_in_place() -> None:
    aliases = {KEY_POOL_OUT: KEY_POOL, VALUE_POOL_OUT: VALUE_POOL, MIXED: -1}
    for output, source in aliases.items():
        assert made().get_aliased_input(output) == source
        assert made(aliased=False).get_aliased_input(output) == -1


def described(kind: Any, form: Any) -> Any:
    tensor = trt.DynamicPluginTensorDesc()
    inner = trt.PluginTensorDesc()
    inner.type, inner.format = kind, form
    tensor.desc = inner
    return tensor


def test_it_takes_bfloat16_and_whole_numbers_as_they_lie() -> None:
    kinds, linear = trt.DataType, trt.TensorFormat.LINEAR
    right = [kinds.BF16] * TABLES + [kinds.INT32] * (INPUTS - TABLES) + [kinds.BF16] * OUTPUTS
    plugin, tensors = made(), [described(kind, linear) for kind in right]
    every = range(INPUTS + OUTPUTS)
    assert all(plugin.supports_format_combination(at, tensors, INPUTS) for at in every)
    for at in every:
        other = kinds.INT32 if right[at] == kinds.BF16 else kinds.FLOAT
        for wrong in (described(other, linear), described(right[at], trt.TensorFormat.CHW4)):
            changed = [*tensors[:at], wrong, *tensors[at + 1 :]]
            assert not plugin.supports_format_combination(at, changed, INPUTS)


class FakeLauncher:
    """Keeps what would be launched; 65 multiprocessors."""

    def __init__(self) -> None:
        self.launched: list[tuple[Launch, int]] = []
        self.loaded: list[CompiledKernel] = []

    def load(self, kernels: Iterable[CompiledKernel]) -> None:
        self.loaded.extend(kernels)

    def processors(self) -> int:
        return 65

    def launch(self, launch: Launch, stream: int) -> None:
        self.launched.append((launch, stream))


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> FakeLauncher:
    fake = FakeLauncher()
    monkeypatch.setattr(paged_plugin, "kernel_launcher", lambda: fake)
    return fake


def shaped(*sizes: int) -> Any:
    tensor = trt.PluginTensorDesc()
    tensor.dims = trt.Dims(sizes)
    return tensor


def enqueue(plugin: Any, tokens: int, sequences: int, *, key_pool_out: int | None = None) -> None:
    inputs = [4096 * (1 + place) for place in range(INPUTS)]
    outputs = [65536, inputs[KEY_POOL], inputs[VALUE_POOL]]
    if key_pool_out is not None:
        outputs[KEY_POOL_OUT] = key_pool_out
    shapes = [shaped(1)] * INPUTS
    shapes[QUERIES] = shaped(tokens, 8, 64)
    shapes[LENGTHS] = shapes[STARTS] = shaped(sequences)
    shapes[TABLES] = shaped(sequences, MAX_BLOCKS)
    shapes[CU_SEQLENS] = shaped(sequences + 1)
    plugin.enqueue(shapes, shapes[:OUTPUTS], inputs, outputs, 1 << 20, 77)


def test_a_decode_step_appends_attends_and_combines(launcher: FakeLauncher) -> None:
    enqueue(made(phase="RUNTIME"), ROWS, ROWS)
    names = [launch.kernel.name for launch, _ in launcher.launched]
    assert names == ["append_rows", "attend_rows", "combine_rows"]
    assert [launch.grid for launch, _ in launcher.launched] == [
        *((ROWS, 2, 1), (ROWS, 2, 4), (ROWS * 8, 1, 1))
    ]
    assert {stream for _, stream in launcher.launched} == {77}


def test_a_prefill_step_appends_and_attends(launcher: FakeLauncher) -> None:
    enqueue(made(phase="RUNTIME"), 32, ROWS)
    (append, _), (attend, _) = launcher.launched
    assert (append.kernel.name, append.grid) == ("append_packed", (32, 2, 1))
    assert (attend.kernel.variant, attend.grid) == (32, (1 + ROWS - 1, 8, 1))


def test_a_pool_that_was_copied_is_no_pool(launcher: FakeLauncher) -> None:
    for plugin in (made(), made(aliased=False, phase="RUNTIME")):
        with pytest.raises(EngineFailure, match="as a copy"):
            enqueue(plugin, ROWS, ROWS, key_pool_out=1 << 21)
    assert not launcher.launched


def test_nothing_is_launched_while_tensorrt_builds(launcher: FakeLauncher) -> None:
    """It may time a layer over block tables that hold anything."""
    for plugin in (made(), made(aliased=False)):
        assert plugin.attach_to_context(None) is not plugin
        enqueue(plugin, ROWS, ROWS)
    enqueue(made(aliased=False), ROWS, ROWS, key_pool_out=1 << 21)
    assert not launcher.loaded
    assert not launcher.launched


def test_a_context_of_a_loaded_plan_has_its_kernels(launcher: FakeLauncher) -> None:
    attached = made(phase="RUNTIME").attach_to_context(None)
    assert launcher.loaded == list(KERNELS)
    enqueue(attached, ROWS, ROWS)
    assert len(launcher.launched) == 3


def test_memory_that_kernels_do_not_take_is_refused(launcher: FakeLauncher) -> None:
    with pytest.raises(EngineFailure, match="aligned to 16 bytes"):
        enqueue(made(aliased=False), ROWS, ROWS, key_pool_out=8)
    assert not launcher.launched
