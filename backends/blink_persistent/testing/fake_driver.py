"""A CUDA driver that is none: memory that only has addresses, graphs that are lists of names.

It stands in for the calls by which an engine is provisioned and captured; nothing is computed. What
was done is kept in `FakeDriver.calls`, in brackets where it was done in a slice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

FREE_BYTES, TOTAL_BYTES = 8 << 30, 10 << 30
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

    @property
    def is_recording(self) -> bool:
        """Whether a stream is being captured."""
        return self._recording is not None

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
