"""TensorRT's runtime and a CUDA driver that are none, for how a plan is loaded and captured.

They stand in for the calls that `engines/tensorrt` makes on a GPU, and for nothing else: no step
computes anything. What the real module can do without a GPU is tested with the real one. Every call
that matters is kept in `FakeDriver.calls`, in brackets where it was made in a slice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

VERSION = "11.4.0.106"
FREE_BYTES, TOTAL_BYTES = 8 << 30, 10 << 30
STEP_BYTES = 1 << 20
_KERNEL, _HOST = SimpleNamespace(name="KERNEL"), SimpleNamespace(name="HOST")


class FakeDriver:
    """One GPU, sm_89, with memory that only has addresses, and graphs that are lists of names."""

    CUresult = SimpleNamespace(CUDA_SUCCESS=SimpleNamespace(name="CUDA_SUCCESS"))
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL=1)
    CUgraphInstantiate_flags = SimpleNamespace(CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH=4)
    CUgraphNodeType = SimpleNamespace(CU_GRAPH_NODE_TYPE_KERNEL=_KERNEL)

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.graphs: dict[int, list[str]] = {}
        self.freed: list[int] = []
        self._parked = False
        self._next = 1 << 20
        self._recording: list[str] | None = None

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """A slice."""
        assert not self._parked, "slices do not nest"
        self._parked = True
        try:
            yield
        finally:
            self._parked = False

    def tell(self, what: str) -> None:
        """Keep that something was done."""
        self.calls.append(f"[{what}]" if self._parked else what)

    def enqueue(self, kernels: Sequence[str]) -> None:
        """What a library enqueues on a stream: recorded, or done at once."""
        if self._recording is not None:
            self._recording.extend(kernels)

    @staticmethod
    def CUgraph(graph: int) -> int:  # noqa: N802  the driver's name
        """A handle is its number."""
        return graph

    @staticmethod
    def CUDA_GRAPH_INSTANTIATE_PARAMS() -> Any:  # noqa: N802  the driver's name
        """Its results are set by the instantiation."""
        return SimpleNamespace(result_out=SimpleNamespace(name="NODE"), hErrNode_out=0)

    def __getattr__(self, name: str) -> Callable[..., tuple[Any, ...]]:
        def call(*arguments: Any) -> tuple[Any, ...]:
            own = re.sub("([A-Z])", r"_\1", name.removeprefix("cu")).lower()
            answer = getattr(self, own, None)
            found = answer(*arguments) if answer is not None else self._known(name)
            if isinstance(found, Exception):
                return (SimpleNamespace(name=str(found)), None)
            success = self.CUresult.CUDA_SUCCESS
            return (success, *found) if isinstance(found, tuple) else (success, found)

        if name.startswith("_"):
            raise AttributeError(name)
        return call

    def _known(self, name: str) -> Any:
        return {
            "cuDeviceGetCount": 1,
            "cuDeviceComputeCapability": (8, 9),
            "cuMemGetInfo": (FREE_BYTES, TOTAL_BYTES),
        }.get(name, 7)

    def _number(self) -> int:
        self._next += 1 << 12
        return self._next

    def _mem_alloc(self, nbytes: int) -> int:
        return self._number()

    def _mem_free(self, address: int) -> int:
        self.freed.append(address)
        self.tell("cuMemFree")
        return 0

    def _stream_create(self, flags: int) -> int:
        return self._number()

    def _stream_synchronize(self, stream: int) -> int:
        self.tell("synchronize")
        return 0

    def _stream_begin_capture(self, stream: int, mode: int) -> int:
        self._recording = []
        return 0

    def _stream_end_capture(self, stream: int) -> int:
        graph, nodes = self._number(), self._recording or []
        self.graphs[graph], self._recording = nodes, None
        return graph

    def _graph_instantiate_with_params(self, graph: int, parameters: Any) -> Any:
        nodes = self.graphs[graph]
        if "host" in nodes:
            parameters.hErrNode_out = 1 + nodes.index("host") + (graph << 8)
            return ValueError("CUDA_ERROR_NOT_SUPPORTED")
        self.tell(f"instantiate {' '.join(nodes)}")
        return self._number()

    def _graph_exec_destroy(self, executable: int) -> int:
        self.tell("cuGraphExecDestroy")
        return 0

    def _graph_get_nodes(self, graph: int, count: int) -> tuple[list[int], int]:
        nodes = self.graphs[graph]
        return [1 + i + (graph << 8) for i in range(count)], len(nodes)

    def _graph_node_get_type(self, node: int) -> Any:
        return _HOST if self._node(node) == "host" else _KERNEL

    def _graph_kernel_node_get_params(self, node: int) -> Any:
        return SimpleNamespace(func=node, kern=0)

    def _func_get_name(self, function: int) -> bytes:
        return self._node(function).encode()

    def _node(self, node: int) -> str:
        return self.graphs[node >> 8][(node & 255) - 1]


class FakeContext:
    """Takes shapes and addresses as TensorRT does, and enqueues the engine's kernels."""

    def __init__(self, engine: FakeEngine, strategy: str) -> None:
        self.engine, self.strategy = engine, strategy
        self.profile = -1
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.addresses: dict[str, int] = {}
        self.memory = (0, 0)
        engine.driver.tell("context")
        engine.contexts.append(self)

    def set_optimization_profile_async(self, profile: int, stream: int) -> bool:
        self.profile = profile
        return True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self.shapes[name] = shape
        return name in self.engine.names and not name.endswith(".out")

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.addresses[name] = address
        return name in self.engine.names and address > 0

    def set_device_memory(self, memory: int, size: int) -> None:
        self.memory = (memory, size)

    def execute_async_v3(self, stream: int) -> bool:
        assert set(self.addresses) == set(self.engine.names)
        self.engine.driver.tell("enqueue")
        self.engine.driver.enqueue(self.engine.kernels)
        return True

    def __del__(self) -> None:
        self.engine.driver.tell("context gone")


class FakeEngine:
    """A plan that was read; `kernels` are those of one step, `layers` as the inspector tells."""

    device_memory_size_v2 = STEP_BYTES

    def __init__(
        self, driver: FakeDriver, names: list[str], kernels: list[str], layers: list[dict[str, str]]
    ) -> None:
        self.driver, self.names, self.kernels, self._layers = driver, names, kernels, layers
        self.contexts: list[FakeContext] = []
        self.num_io_tensors = len(names)

    def get_tensor_name(self, index: int) -> str:
        return self.names[index]

    def create_runtime_config(self) -> Any:
        config = SimpleNamespace(strategy="")
        config.set_execution_context_allocation_strategy = lambda strategy: setattr(
            config, "strategy", strategy
        )
        return config

    def create_execution_context(self, config: Any) -> FakeContext:
        return FakeContext(self, config.strategy)

    def create_engine_inspector(self) -> Any:

        told = json.dumps({"Layers": self._layers})
        return SimpleNamespace(get_engine_information=lambda kind: told)


class FakeLogger:
    """The base of a logger."""

    INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = range(5)


class FakeReader:
    """The base of a stream reader."""


def fake_tensorrt(engine: FakeEngine | None, *, complaint: str = "") -> Any:
    """A module `tensorrt` whose runtime reads every plan to its end and gives `engine`.

    `complaint`: what its logger is told of a plan that gives None.
    """

    class Runtime:
        def __init__(self, logger: Any) -> None:
            self._logger = logger

        def deserialize_cuda_engine(self, reader: Any) -> FakeEngine | None:
            while reader.read(1 << 10, 0):
                pass
            if engine is None:
                self._logger.log(FakeLogger.ERROR, complaint)
            return engine

    module = ModuleType("tensorrt")
    vars(module).update(
        __version__=VERSION,
        ILogger=FakeLogger,
        IStreamReaderV2=FakeReader,
        Runtime=Runtime,
        LayerInformationFormat=SimpleNamespace(JSON="json"),
        ExecutionContextAllocationStrategy=SimpleNamespace(USER_MANAGED="user managed"),
    )
    return module
