"""Captures work as a graph, as the engine does with a step, and times it."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch


def captured(work: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """What `work` enqueues on the current stream, once it has run there."""
    with torch.no_grad():
        work()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(capture_error_mode="thread_local")
        work()
        graph.capture_end()
    return graph


def microseconds(work: Callable[[], object], *, replays: int = 8, runs: int = 3) -> float:
    """Of one replay of what `work` enqueues, as `replay_us`."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())  # what `work` reads is made there
    with torch.cuda.stream(stream):
        return replay_us(captured(work), replays=replays, runs=runs)


def replay_us(graph: torch.cuda.CUDAGraph, *, replays: int, runs: int) -> float:
    """Microseconds of one replay: the median of so many runs of so many replays.

    Each is timed by two device events on the current stream; a first run does not count.
    """
    found = []
    for _ in range(runs + 1):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        end.synchronize()
        found.append(1e3 * start.elapsed_time(end) / replays)
    return statistics.median(found[1:])
