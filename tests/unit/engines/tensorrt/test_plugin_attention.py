"""The seam, filled by one layer of the plugin.

The network is a fake: TensorRT for RTX, which is a real module here, takes no plugins.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from blink_persistent.engines.tensorrt import plugin_attention
from blink_persistent.engines.tensorrt.attention_launches import AttentionShape
from blink_persistent.engines.tensorrt.kernel_archive import CompiledKernel, Role
from blink_persistent.engines.tensorrt.layers import Layers
from blink_persistent.engines.tensorrt.paged_plugin import PluginState
from blink_persistent.engines.tensorrt.plugin_attention import (
    LIBRARY,
    PluginAttention,
    plugin_creator,
)
from blink_server.errors import EngineFailure, Unavailable

SHAPE = AttentionShape(heads=8, kv_heads=2, head_dim=64, block_size=64, programs=5, scale=0.25)
STATE = PluginState(SHAPE, (CompiledKernel(Role.APPEND_ROWS, 0, 1, 0, "append", b"code"),), True)
TENSORS = {name: f"tensor {name}" for name in ("q", "k", "v", "k_pool", "v_pool")}
STEP = {name: f"tensor {name}" for name in ("block_table", "kv_len", "start", "cu_seqlens")}


class FakeNetwork:
    """Takes plugins, unless it `refuses`."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.layers: list[Any] = []
        self._refuses = refuses

    def add_plugin_v3(self, inputs: list[Any], shape_inputs: list[Any], plugin: Any) -> Any:
        outputs = [SimpleNamespace(name="") for _ in range(plugin.num_outputs)]
        layer = SimpleNamespace(
            inputs=inputs, plugin=plugin, num_outputs=3, get_output=outputs.__getitem__
        )
        assert shape_inputs == []
        self.layers.append(layer)
        return None if self._refuses else layer


def attend(trt: Any, network: FakeNetwork, name: str) -> Any:
    fake: Any = network
    tensors: Any = {**TENSORS, **STEP}
    return PluginAttention(Layers(trt, fake), STATE).paged_attention(**tensors, name=name)


def test_a_layer_takes_everything_and_gives_mixed_values_and_pools(trt: Any) -> None:
    network = FakeNetwork()
    attended = attend(trt, network, "layers.3/attention")
    (layer,) = network.layers
    assert layer.inputs == [*TENSORS.values(), *STEP.values()]
    assert layer.name == "layers.3/attention/paged"
    outputs = [layer.get_output(i) for i in range(3)]
    assert [attended.mixed, attended.k_pool, attended.v_pool] == outputs
    assert PluginState.from_fields(layer.plugin.get_fields_to_serialize()) == STATE
    assert not layer.plugin.serves


def test_a_layer_that_is_refused_is_named(trt: Any) -> None:
    with pytest.raises(EngineFailure, match=r"add the layer 'layers\.0/attention/paged'"):
        attend(trt, FakeNetwork(refuses=True), "layers.0/attention")


class FakeRegistry:
    """Knows no plugin; a library that is loaded brings none either."""

    def __init__(self) -> None:
        self.loaded: list[str] = []

    def get_creator(self, *name: str) -> None:
        return None

    def load_library(self, path: str) -> None:
        self.loaded.append(path)


def test_a_library_that_is_missing_or_foreign_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, registry = tmp_path / "libblink_tensorrt.so", FakeRegistry()
    monkeypatch.setattr(plugin_attention, "LIBRARY_FILE", library)
    module: Any = type("Module", (), {"get_plugin_registry": lambda self: registry})()
    module.__version__ = "11.4.0.106"
    with pytest.raises(Unavailable, match=r"needs the plugin library libblink_tensorrt\.so"):
        plugin_creator(module, LIBRARY)
    library.touch()
    with pytest.raises(Unavailable, match=r"is not a plugin library for TensorRT 11\.4\.0\.106"):
        plugin_creator(module, LIBRARY)
    assert registry.loaded == [str(library)]
