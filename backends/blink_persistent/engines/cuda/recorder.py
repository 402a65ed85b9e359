"""Where the engine's steps run and are captured: a stream and a memory pool of PyTorch's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from blink_persistent.gpu.graphs import GraphRefused

_capturing = threading.Lock()  # PyTorch fails to empty its caches while any thread captures


def empty_caches() -> None:
    """Give back what PyTorch keeps for later, beside the captures of other versions.

    No other thread may run a step meanwhile that is not captured.
    """
    with _capturing:
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()


@contextmanager
def _workspaces_from_pool() -> Iterator[None]:
    """Have cuBLAS take its workspace from the pool of the graph that is captured inside.

    PyTorch keeps one for each handle and stream, for good, and hands both out again: it would be
    lost with each version, in the end shared by two of them whose steps run at the same time.
    """
    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()


class TorchRecorder:
    """Fulfils `Recorder`; all graphs share the pool, since no two run at once. One thread's alone.

    A graph's owner is PyTorch's graph, which can also be replayed from the host. To make one may
    wait for resident schedulers; to record does not any more.
    """

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()
        self._pool = torch.cuda.graph_pool_handle()
        with torch.cuda.stream(self._stream):
            word = torch.zeros(1, device=self._stream.device)
        # To begin a capture PyTorch launches kernels of its own, and loads them at the first one.
        # The pool lasts as long as any of its graphs.
        self._first = self.record(word.zero_)
        self.finish()

    def run(self, step: Callable[[], None]) -> None:
        with torch.no_grad(), torch.cuda.stream(self._stream):
            step()

    def finish(self) -> None:
        self._stream.synchronize()

    def record(self, step: Callable[[], None]) -> tuple[Any, int]:
        # Not `torch.cuda.graph`, which collects garbage and empties caches once a graph.
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        here = torch.cuda.stream(self._stream)
        with _capturing, torch.no_grad(), here, _workspaces_from_pool():
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                step()
            except BaseException:
                with suppress(RuntimeError):  # what has failed says why
                    graph.capture_end()
                raise
            graph.capture_end()
        return graph, graph.raw_cuda_graph()

    def explain(self, graph: int, refused: GraphRefused) -> str:
        return ""
