"""One execution context a key of the grid, all of them over one piece of device memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from blink_persistent.engines.tensorrt.network import pool_names
from blink_persistent.engines.tensorrt.plan_builder import DECODE_PROFILE, PREFILL_PROFILE
from blink_persistent.engines.tensorrt.plan_description import PlanDescription
from blink_persistent.engines.tensorrt.plan_loader import LOGITS, LoadedPlan
from blink_persistent.engines.tensorrt.trt_types import Context, Engine, Trt
from blink_persistent.gpu.driver import CudaError
from blink_persistent.gpu.structs import PhaseBuffers
from blink_persistent.graph_grid import DECODE, GraphKey

Addresses = Mapping[str, int]
Shapes = Mapping[str, tuple[int, ...]]


def step_addresses(buffers: PhaseBuffers) -> dict[str, int]:
    """Where a phase's inputs are. A decode step's cu_seqlens are 0, 1, 2 ... and stay so."""
    return {
        "token_ids": buffers.token_ids,
        "start_positions": buffers.start_positions,
        "lengths": buffers.lengths,
        "cu_seqlens": buffers.cu_seqlens,
        "block_tables": buffers.block_tables,
    }


def step_shapes(plan: PlanDescription, key: GraphKey, block_count: int) -> dict[str, Any]:
    """The shapes of all inputs of a key's step."""
    model = plan.architecture
    pool = (block_count, model.kv_heads, plan.block_size, model.head_dim)
    return {
        "token_ids": (key.tokens,),
        "start_positions": (key.sequences,),
        "lengths": (key.sequences,),
        "cu_seqlens": (key.sequences + 1,),
        "block_tables": (key.sequences, plan.max_blocks),
        **{name: pool for layer in range(model.layers) for name in pool_names(layer)},
    }


def _make_context(trt: Any, engine: Engine) -> Context:
    """A context whose memory is ours, and whose kernels are those of its first step for good."""
    config = engine.create_runtime_config()
    config.set_execution_context_allocation_strategy(
        trt.ExecutionContextAllocationStrategy.USER_MANAGED
    )
    if hasattr(config, "dynamic_shapes_kernel_specialization_strategy"):  # TensorRT for RTX
        eager = trt.DynamicShapesKernelSpecializationStrategy.EAGER
        config.dynamic_shapes_kernel_specialization_strategy = eager
    return engine.create_execution_context(config)


class Contexts:
    """Execution contexts by key, made when they are first asked for. One thread's alone.

    Steps must not overlap: they use the same memory.
    """

    def __init__(
        self,
        trt: Trt,
        loaded: LoadedPlan,
        plan: PlanDescription,
        *,
        block_count: int,
        step_memory: int,
        inputs: Mapping[int, Addresses],
        pools: Addresses,
        logits: int,
        exclusive: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """`inputs`: of each phase; `pools`: by the names of `pool_names`; all device addresses."""
        self._trt, self._loaded, self._plan = trt, loaded, plan
        self._block_count, self._step_memory = block_count, step_memory
        self._inputs, self._exclusive = inputs, exclusive
        outputs = {f"{name}.out": address for name, address in pools.items()}
        self._shared: dict[str, int] = {**pools, **outputs, LOGITS: logits}
        self._made: dict[GraphKey, Context] = {}

    def enqueue(self, key: GraphKey, stream: int) -> None:
        """Enqueue a key's step. Raises CudaError with TensorRT's reason."""
        context = self.of(key, stream)
        with self._loaded.explaining():
            if not context.execute_async_v3(stream):
                raise self._failure("cannot enqueue it")

    def of(self, key: GraphKey, stream: int) -> Context:
        """The key's context; one that is made waits for resident kernels."""
        if key not in self._made:
            with self._exclusive(), self._loaded.explaining():
                self._made[key] = self._make(key, stream)
        return self._made[key]

    def close(self) -> None:
        """Give their memory back; waits for resident kernels."""
        self._made.clear()

    def _make(self, key: GraphKey, stream: int) -> Context:
        context = _make_context(self._trt, self._loaded.engine)
        if context is None:
            raise self._failure("has no memory for its context")
        profile = DECODE_PROFILE if key.phase == DECODE else PREFILL_PROFILE
        if not context.set_optimization_profile_async(profile, stream):
            raise self._failure(f"does not take profile {profile}")
        for name, shape in step_shapes(self._plan, key, self._block_count).items():
            if not context.set_input_shape(name, shape):
                raise self._failure(f"does not take the shape {shape} of {name!r}")
        for name, address in {**self._shared, **self._inputs[key.phase]}.items():
            if not context.set_tensor_address(name, address):
                raise self._failure(f"does not take the address of {name!r}")
        context.set_device_memory(self._step_memory, self._loaded.step_bytes)
        return context

    def _failure(self, what: str) -> CudaError:
        return CudaError(f"TensorRT {what}: {self._loaded.explanation()}")
