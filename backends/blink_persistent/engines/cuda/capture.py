"""Captures one graph a key of the grid, each ready for launch by the scheduler on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from blink_persistent.gpu.driver import CudaError, Gpu
from blink_persistent.graph_grid import DECODE, GraphGrid, GraphKey


@dataclass(frozen=True, slots=True)
class CapturedGraphs:
    """`executables` in the order of the grid's keys, owned by the `Gpu`.

    `sources` are PyTorch's graphs, which own the memory pool; they can also be replayed from the
    host. `nbytes` is the device memory that all executables took.
    """

    executables: list[Any]
    sources: list[Any]
    nbytes: int


def capture_graphs(
    gpu: Gpu,
    grid: GraphGrid,
    step: Callable[[GraphKey], None],
    *,
    progress: Callable[[float], None],
) -> CapturedGraphs:
    """Run `step` for every key twice on a stream of its own: to warm up, then to be captured.

    The warm-up loads each kernel's module, compiles what is not compiled yet and lets libraries
    allocate; after it, a step must neither allocate nor wait. Raises CudaError naming the key.
    """
    stream, pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()
    sources: dict[GraphKey, Any] = {}
    executables: dict[GraphKey, Any] = {}
    # Largest first: later ones find all memory that they need in the pool.
    order = sorted(grid.keys, key=lambda key: (key.tokens, key.sequences), reverse=True)
    with torch.no_grad(), torch.cuda.stream(stream):
        for done, key in enumerate(order):
            with _naming(key):
                step(key)
            progress(0.5 * done / len(order))
        torch.cuda.synchronize()
        free = gpu.free_bytes()
        for done, key in enumerate(order):
            with _naming(key):
                sources[key] = _capture(step, key, pool)
                graph = gpu.driver.CUgraph(sources[key].raw_cuda_graph())
                executables[key] = gpu.instantiate(graph)
            progress(0.5 + 0.5 * (done + 1) / len(order))
    return CapturedGraphs(
        executables=[executables[key] for key in grid.keys],
        sources=[sources[key] for key in grid.keys],
        nbytes=free - gpu.free_bytes(),
    )


def _capture(step: Callable[[GraphKey], None], key: GraphKey, pool: Any) -> Any:
    # Not `torch.cuda.graph`, which collects garbage and empties caches once a graph.
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    graph.capture_begin(pool=pool, capture_error_mode="thread_local")
    try:
        step(key)
    finally:
        graph.capture_end()
    return graph


@contextmanager
def _naming(key: GraphKey) -> Iterator[None]:
    try:
        yield
    except (CudaError, RuntimeError) as error:
        name = "decode" if key.phase == DECODE else "prefill"
        what = f"{name} step of {key.sequences} sequences, {key.tokens} tokens"
        raise CudaError(f"the {what} cannot be captured: {error}") from error
