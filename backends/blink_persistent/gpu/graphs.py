"""Graphs of work on a GPU: captured, made ready for launch from the device, and why not."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from blink_persistent.gpu.driver import CudaError, Gpu


class GraphRefused(CudaError):
    """A graph cannot be launched from the device; `node` is why, or None."""

    def __init__(self, message: str, node: Any) -> None:
        super().__init__(message)
        self.node = node


def device_graph(gpu: Gpu, record: Callable[[Any], None]) -> Any:
    """An executable graph of the work that `record(stream)` gives, as `instantiate` makes it.

    Raises CudaError, GraphRefused, what `record` raises.
    """
    graph = capture(gpu, gpu.io, lambda: record(gpu.io))
    try:
        return instantiate(gpu, graph)
    finally:
        gpu.call("cuGraphDestroy", graph)


def capture(gpu: Gpu, stream: Any, record: Callable[[], None]) -> Any:
    """The graph of what `record` enqueues on a stream, the caller's to destroy.

    Raises CudaError, and what `record` raises, after which nothing is left of the capture.
    """
    mode = gpu.driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    gpu.call("cuStreamBeginCapture", stream, mode)
    try:
        record()
    except BaseException:
        with suppress(CudaError):  # what has failed first says why
            if (graph := gpu.call("cuStreamEndCapture", stream)) is not None:
                gpu.call("cuGraphDestroy", graph)
        raise
    return gpu.call("cuStreamEndCapture", stream)


def instantiate(gpu: Gpu, graph: Any) -> Any:
    """The executable of a captured graph, uploaded, ready for device launch; owned by `gpu`.

    The graph itself stays the caller's. Raises GraphRefused, which says why, and what the refused
    node is where there is one.
    """
    driver = gpu.driver
    parameters = driver.CUDA_GRAPH_INSTANTIATE_PARAMS()
    parameters.flags = driver.CUgraphInstantiate_flags.CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH
    try:
        with gpu.exclusive():
            executable = gpu.call("cuGraphInstantiateWithParams", graph, parameters)
    except CudaError as error:
        reason, node = parameters.result_out.name, parameters.hErrNode_out
        refused = node if int(node) else None
        told = f": {node_name(gpu, node)}" if refused is not None else ""
        raise GraphRefused(f"{error} ({reason}{told})", refused) from error
    gpu.own("cuGraphExecDestroy", executable)
    gpu.call("cuGraphUpload", executable, gpu.io)
    gpu.call("cuStreamSynchronize", gpu.io)
    return executable


def node_name(gpu: Gpu, node: Any) -> str:
    """What a captured graph's node is, for a message: its kind, or "kernel" and its name."""
    kind = gpu.call("cuGraphNodeGetType", node)
    if kind != gpu.driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL:
        return str(kind.name)
    kernel = gpu.call("cuGraphKernelNodeGetParams", node)
    if int(kernel.func) != 0:
        return f"kernel {gpu.call('cuFuncGetName', kernel.func).decode()}"
    return f"kernel {gpu.call('cuKernelGetName', kernel.kern).decode()}"
