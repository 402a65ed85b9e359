"""The plugin `PagedAttention`: attention over paged KV by the engine `cuda`'s kernels, in Python.

An `IPluginV3` whose enqueue launches compiled kernels on the stream it is given and calls nothing
of the host, so that a captured step holds kernels only. The plan holds the kernels themselves
(`kernel_archive.py`). `csrc/tensorrt/paged_attention.cc` is the same plugin in C++, by the same
name, fields, inputs and outputs: a plan built with one is served by the other.

    inputs    queries [t, heads, head_dim], keys, values [t, kv_heads, head_dim], bfloat16
              key and value pools [blocks, kv_heads, block_size, head_dim], bfloat16
              block tables int32 [n, max_blocks], lengths, starts int32 [n], cu_seqlens [n + 1]
    outputs   mixed values as the queries; both pools, in the same memory as they came
    fields    "shape" int32 [6]: heads, kv_heads, head_dim, block_size, programs, aliased
              "scale" float32 [1], of scores, times log2(e)
              "kernels" int8, an archive
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from blink_persistent.engines.tensorrt.attention_launches import (
    AttentionShape,
    Buffers,
    attention_launches,
    workspace_bytes,
)
from blink_persistent.engines.tensorrt.kernel_archive import (
    CompiledKernel,
    pack_kernels,
    unpack_kernels,
)
from blink_persistent.engines.tensorrt.kernel_launcher import kernel_launcher
from blink_server.errors import EngineFailure

NAME, VERSION, NAMESPACE = "PagedAttention", "1", "blink"
QUERIES, KEYS, VALUES, KEY_POOL, VALUE_POOL, TABLES, LENGTHS, STARTS, CU_SEQLENS = range(9)
INPUTS, OUTPUTS = 9, 3
MIXED, KEY_POOL_OUT, VALUE_POOL_OUT = range(3)
_ALIGNMENT = 16  # of addresses, for which the kernels were compiled


@dataclass(frozen=True, slots=True)
class PluginFields:
    """A `PluginFieldCollection`, and the memory that it points to without holding it."""

    collection: Any
    held: tuple[npt.NDArray[Any], ...]


@dataclass(frozen=True, slots=True)
class PluginState:
    """What a plan keeps of a layer. `aliased`: TensorRT is told that pools are written in place.

    Otherwise whoever executes the plan binds each pool's output to its input's memory.
    """

    shape: AttentionShape
    kernels: tuple[CompiledKernel, ...]
    aliased: bool

    def fields(self, trt: Any) -> PluginFields:
        """What `from_fields` reads."""
        shape = self.shape
        sizes = (shape.heads, shape.kv_heads, shape.head_dim, shape.block_size, shape.programs)
        numbers = np.array([*sizes, self.aliased], np.int32)
        scale = np.array([shape.scale], np.float32)
        archive = np.frombuffer(pack_kernels(self.kernels), np.int8)
        kinds = trt.PluginFieldType
        collection = trt.PluginFieldCollection(
            [
                trt.PluginField("shape", numbers, kinds.INT32),
                trt.PluginField("scale", scale, kinds.FLOAT32),
                trt.PluginField("kernels", archive, kinds.INT8),
            ]
        )
        return PluginFields(collection, (numbers, scale, archive))

    @classmethod
    def from_fields(cls, collection: Any) -> PluginState:
        """The state that `fields` gave. Raises ValueError for one that is not whole."""
        found = {field.name: field.data for field in collection}
        try:
            numbers = np.frombuffer(found["shape"], np.int32).tolist()
            heads, kv_heads, head_dim, block_size, programs, aliased = numbers
            (scale,) = np.frombuffer(found["scale"], np.float32).tolist()
            kernels = unpack_kernels(np.frombuffer(found["kernels"], np.int8).tobytes())
        except KeyError as error:
            raise ValueError(f"the plan's {NAME} layer has no field {error}") from error
        shape = AttentionShape(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            block_size=block_size,
            programs=programs,
            scale=scale,
        )
        return cls(shape, tuple(kernels), bool(aliased))


class PagedAttentionLayer:
    """The plugin's methods; `plugin_class` joins them to the classes of a TensorRT module.

    `serves`: of a plan that was loaded. While one is being built, TensorRT may time a layer over
    memory that holds anything, block tables too: nothing is launched then.
    """

    trt: Any
    bases: Sequence[Any]

    def __init__(self, state: PluginState, *, serves: bool) -> None:
        for base in self.bases:
            base.__init__(self)
        self.state, self.serves = state, serves
        self.plugin_name, self.plugin_version, self.plugin_namespace = NAME, VERSION, NAMESPACE
        self.num_outputs = OUTPUTS
        self._fields = state.fields(self.trt)

    def get_capability_interface(self, type: Any) -> Any:
        return self

    def clone(self) -> Any:
        return self.__class__(self.state, serves=self.serves)

    def get_output_data_types(self, input_types: Sequence[Any]) -> list[Any]:
        return [input_types[QUERIES], input_types[KEY_POOL], input_types[VALUE_POOL]]

    def get_output_shapes(
        self, inputs: Sequence[Any], shape_inputs: Sequence[Any], expr_builder: Any
    ) -> list[Any]:
        wanted = (QUERIES, KEY_POOL, VALUE_POOL)
        return [self.trt.DimsExprs(inputs[place]) for place in wanted]

    def supports_format_combination(self, pos: int, in_out: Sequence[Any], num_inputs: int) -> bool:
        tensor = in_out[pos].desc
        whole_numbers = TABLES <= pos < num_inputs
        kind = self.trt.DataType.INT32 if whole_numbers else self.trt.DataType.BF16
        return bool(tensor.format == self.trt.TensorFormat.LINEAR and tensor.type == kind)

    def get_aliased_input(self, output_index: int) -> int:
        pools = {KEY_POOL_OUT: KEY_POOL, VALUE_POOL_OUT: VALUE_POOL}
        return pools.get(output_index, -1) if self.state.aliased else -1

    def get_workspace_size(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> int:
        return workspace_bytes(self.state.shape, self.state.kernels, inputs[LENGTHS].max[0])

    def configure_plugin(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Nothing depends on the formats or bounds."""

    def on_shape_change(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Launches follow from the shapes that `enqueue` is given."""

    def set_tactic(self, tactic: int) -> None:
        """There is one."""

    def get_fields_to_serialize(self) -> Any:
        return self._fields.collection

    def attach_to_context(self, context: Any) -> Any:
        """Kernels are loaded here, not by the first step: a load waits for resident kernels."""
        if self.serves:
            kernel_launcher().load(self.state.kernels)
        return self.clone()

    def enqueue(
        self,
        input_desc: Sequence[Any],
        output_desc: Sequence[Any],
        inputs: Sequence[int],
        outputs: Sequence[int],
        workspace: int,
        stream: int,
    ) -> None:
        """Launch the step's kernels. Raises EngineFailure, CudaError."""
        buffers = self._buffers(inputs, outputs, workspace)
        if not self.serves:
            return
        launcher = kernel_launcher()
        launches = attention_launches(
            self.state.shape,
            self.state.kernels,
            buffers,
            tokens=input_desc[QUERIES].dims[0],
            sequences=input_desc[LENGTHS].dims[0],
            max_blocks=input_desc[TABLES].dims[1],
            processors=launcher.processors(),
        )
        for launch in launches:
            launcher.launch(launch, stream)

    def _buffers(self, inputs: Sequence[int], outputs: Sequence[int], workspace: int) -> Buffers:
        in_place = (outputs[KEY_POOL_OUT], outputs[VALUE_POOL_OUT]) == (
            inputs[KEY_POOL],
            inputs[VALUE_POOL],
        )
        if not in_place and (self.state.aliased or self.serves):
            raise EngineFailure("TensorRT gave a layer's KV memory as a copy: no entry would stay")
        buffers = Buffers(
            queries=inputs[QUERIES],
            keys=inputs[KEYS],
            values=inputs[VALUES],
            key_pool=outputs[KEY_POOL_OUT],
            value_pool=outputs[VALUE_POOL_OUT],
            tables=inputs[TABLES],
            lengths=inputs[LENGTHS],
            starts=inputs[STARTS],
            cu_seqlens=inputs[CU_SEQLENS],
            out=outputs[MIXED],
            workspace=workspace,
        )
        if any(address % _ALIGNMENT for address in astuple(buffers)):
            raise EngineFailure(f"TensorRT gave memory that is not aligned to {_ALIGNMENT} bytes")
        return buffers


class PagedAttentionCreator:
    """The creator's methods; `creator_class` joins them to those of a TensorRT module."""

    trt: Any
    base: Any

    def __init__(self) -> None:
        self.base.__init__(self)
        self.name, self.plugin_version, self.plugin_namespace = NAME, VERSION, NAMESPACE
        names = ("shape", "scale", "kernels")
        self.field_names = self.trt.PluginFieldCollection(
            [self.trt.PluginField(name) for name in names]
        )

    def create_plugin(self, name: str, field_collection: Any, phase: Any) -> Any:
        """Raises ValueError for fields that are not whole."""
        serves = phase == self.trt.TensorRTPhase.RUNTIME
        state = PluginState.from_fields(field_collection)
        return plugin_class(self.trt)(state, serves=serves)


@functools.cache
def plugin_class(trt: Any) -> Callable[..., Any]:
    """`PagedAttentionLayer` as a plugin of the module."""
    bases = (trt.IPluginV3, trt.IPluginV3OneCore, trt.IPluginV3OneBuildV2, trt.IPluginV3OneRuntime)
    return type(NAME, (PagedAttentionLayer, *bases), {"trt": trt, "bases": bases})


@functools.cache
def creator_class(trt: Any) -> Callable[[], Any]:
    """`PagedAttentionCreator` as a creator of the module."""
    base = trt.IPluginCreatorV3One
    return type(f"{NAME}Creator", (PagedAttentionCreator, base), {"trt": trt, "base": base})
