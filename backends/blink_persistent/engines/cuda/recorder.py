"""Where the engine's steps run and are captured: a stream and a memory pool of PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from blink_persistent.gpu.graphs import GraphRefused


class TorchRecorder:
    """Fulfils `Recorder`; all graphs share the pool. One thread's alone.

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
        with torch.no_grad(), torch.cuda.stream(self._stream):
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
