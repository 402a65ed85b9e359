"""Attention by the plugin `PagedAttention`: one layer of it for each decoder layer."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from blink_persistent import _native
from blink_persistent.engines.tensorrt.attention import Attended
from blink_persistent.engines.tensorrt.layers import Layers
from blink_persistent.engines.tensorrt.paged_plugin import (
    KEY_POOL_OUT,
    MIXED,
    NAME,
    NAMESPACE,
    VALUE_POOL_OUT,
    VERSION,
    PluginState,
    creator_class,
)
from blink_persistent.engines.tensorrt.trt_types import Tensor
from blink_server.errors import Unavailable

PYTHON, LIBRARY = "python", "library"
OFFERERS = (PYTHON, LIBRARY)
"""Who may offer the plugin: this package's Python, or the library that was built with it."""

LIBRARY_FILE = Path(_native.__file__ or "").with_name("libblink_tensorrt.so")


class PluginAttention:
    """Fulfils `PagedAttention`."""

    def __init__(self, layers: Layers, state: PluginState, offerer: str = PYTHON) -> None:
        """Raises Unavailable as `plugin_creator` does."""
        self._layers = layers
        self._creator = plugin_creator(layers.trt, offerer)
        self._fields = state.fields(layers.trt)

    def paged_attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        k_pool: Tensor,
        v_pool: Tensor,
        block_table: Tensor,
        kv_len: Tensor,
        start: Tensor,
        *,
        cu_seqlens: Tensor,
        name: str,
    ) -> Attended:
        building = self._layers.trt.TensorRTPhase.BUILD
        plugin = self._creator.create_plugin(name, self._fields.collection, building)
        inputs = [q, k, v, k_pool, v_pool, block_table, kv_len, start, cu_seqlens]
        layer = self._layers.network.add_plugin_v3(inputs, [], plugin)
        layer = self._layers.named(layer, f"{name}/paged")
        return Attended(
            layer.get_output(MIXED),
            layer.get_output(KEY_POOL_OUT),
            layer.get_output(VALUE_POOL_OUT),
        )


def library_problem() -> str:
    """Why the plugin library cannot be used, in words; "" where it is there."""
    if LIBRARY_FILE.is_file():
        return ""
    return (
        f"needs the plugin library {LIBRARY_FILE.name}, which this install was built without: "
        f"install it anew with TENSORRT_ROOT set, or use {PYTHON!r}"
    )


@functools.cache
def plugin_creator(trt: Any, offerer: str) -> Any:
    """The plugin's creator, registered with the module for the life of the process.

    The first offerer stays. Raises Unavailable where the library is missing or is refused.
    """
    registry = trt.get_plugin_registry()
    found = registry.get_creator(NAME, VERSION, NAMESPACE)
    if found is not None:
        return found
    if offerer == PYTHON:
        creator = creator_class(trt)()
        registry.register_creator(creator, NAMESPACE)
        return creator
    if problem := library_problem():
        raise Unavailable(problem)
    registry.load_library(str(LIBRARY_FILE))
    found = registry.get_creator(NAME, VERSION, NAMESPACE)
    if found is None:
        raise Unavailable(f"{LIBRARY_FILE} is not a plugin library for TensorRT {trt.__version__}")
    return found
