"""What PyTorch is asked for when steps are captured. Its graphs are stand-ins: there is no GPU."""

from __future__ import annotations

import weakref
from contextlib import nullcontext
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from blink_persistent.engines.cuda.recorder import TorchRecorder


class Stream:
    """Nothing runs on it."""

    device = torch.device("cpu")

    def synchronize(self) -> None: ...


class Graph:
    """A capture of nothing."""

    made: list[weakref.ref[Graph]]

    def __init__(self, keep_graph: bool) -> None:
        assert keep_graph
        self.made.append(weakref.ref(self))
        self.ended = False

    def capture_begin(self, *, pool: Any, **_: Any) -> None:
        assert pool == (0, 1)

    def capture_end(self) -> None:
        self.ended = True

    def raw_cuda_graph(self) -> int:
        assert self.ended
        return len(self.made)


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, stand_in in (
        ("Stream", Stream),
        ("graph_pool_handle", lambda: (0, 1)),
        ("stream", nullcontext),
        ("CUDAGraph", Graph),
    ):
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(Graph, "made", [], raising=False)


def living() -> list[bool]:
    """Of the graphs made so far."""
    return [graph() is not None for graph in Graph.made]


def test_what_a_first_capture_loads_is_loaded_with_the_recorder() -> None:
    """Its maker may stop resident schedulers for that; the pool must not end with the graph."""
    recorder = TorchRecorder()
    assert living() == [True]
    source, raw = recorder.record(lambda: None)
    assert (raw, living()) == (2, [True, True])
    del source
    assert living() == [True, False]


def test_the_reason_of_a_failed_capture_is_what_failed_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorder, ended = TorchRecorder(), list[Graph]()

    def invalid(graph: Graph) -> None:
        ended.append(graph)
        raise RuntimeError("operation failed due to a previous error during capture")

    def step() -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(Graph, "capture_end", invalid)
    with pytest.raises(RuntimeError, match="out of memory"):
        recorder.record(step)
    assert len(ended) == 1
