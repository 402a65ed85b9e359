"""Where TensorRT's steps run and are captured: a stream of its own, by calls of the driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from blink_persistent.engines.tensorrt.refused_layer import tell_layer
from blink_persistent.gpu.driver import Gpu
from blink_persistent.gpu.graphs import GraphRefused, capture, node_name


class StreamRecorder:
    """Fulfils `Recorder`. `layers`: of each plan's layer its name and its tactic's, in order."""

    def __init__(self, gpu: Gpu, layers: Callable[[], list[tuple[str, str]]]) -> None:
        self._gpu, self._layers = gpu, layers
        self.stream = int(gpu.new_stream())

    def run(self, step: Callable[[], None]) -> None:
        step()

    def finish(self) -> None:
        self._gpu.call("cuStreamSynchronize", self.stream)

    def record(self, step: Callable[[], None]) -> tuple[Any, int]:
        graph = capture(self._gpu, self.stream, step)
        self._gpu.own("cuGraphDestroy", graph)
        return graph, int(graph)

    def explain(self, graph: int, refused: GraphRefused) -> str:
        """The layer that enqueued the refused node."""
        if refused.node is None:
            return ""
        nodes = self._nodes(self._gpu.driver.CUgraph(graph))
        numbers = [int(node) for node in nodes]
        if int(refused.node) not in numbers:  # it may be a node of a graph in this one
            return ""
        names = [node_name(self._gpu, node) for node in nodes]
        return tell_layer(names, numbers.index(int(refused.node)), self._layers())

    def _nodes(self, graph: Any) -> list[Any]:
        """In the order in which they were enqueued."""
        _, count = self._gpu.call("cuGraphGetNodes", graph, 0)
        nodes, _ = self._gpu.call("cuGraphGetNodes", graph, count)
        return list(nodes)
