"""What PyTorch is asked for when steps are captured. Its graphs are stand-ins: there is no GPU."""

from __future__ import annotations

import threading
import weakref
from contextlib import nullcontext
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from blink_persistent.engines.cuda.recorder import TorchRecorder, empty_caches


class Stream:
    """Nothing runs on it."""

    device = torch.device("cpu")

    def synchronize(self) -> None: ...


class Graph:
    """A capture of nothing."""

    made: list[weakref.ref[Graph]]
    told: list[str]

    def __init__(self, keep_graph: bool) -> None:
        assert keep_graph
        self.made.append(weakref.ref(self))
        self.ended = False

    def capture_begin(self, *, pool: Any, **_: Any) -> None:
        assert pool == (0, 1)
        self.told.append("begin")

    def capture_end(self) -> None:
        self.told.append("end")
        self.ended = True

    def raw_cuda_graph(self) -> int:
        assert self.ended
        return len(self.made)


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The stand-ins, and what they were asked for."""
    asked = list[str]()
    for name, stand_in in (
        ("Stream", Stream),
        ("graph_pool_handle", lambda: (0, 1)),
        ("stream", nullcontext),
        ("CUDAGraph", Graph),
        ("empty_cache", lambda: asked.append("empty caches")),
    ):
        monkeypatch.setattr(torch.cuda, name, stand_in)
    clear = "_cuda_clearCublasWorkspaces"
    monkeypatch.setattr(torch._C, clear, lambda: asked.append("clear"), raising=False)
    monkeypatch.setattr(Graph, "made", [], raising=False)
    monkeypatch.setattr(Graph, "told", asked, raising=False)
    return asked


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


def test_a_librarys_workspace_is_the_pools_and_ends_with_it(told: list[str]) -> None:
    """One that PyTorch keeps beyond the capture is another version's too, and never given back."""
    recorder = TorchRecorder()
    told.clear()
    recorder.record(lambda: told.append("step"))
    assert told == ["clear", "begin", "step", "end", "clear"]

    def fail() -> None:
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        recorder.record(fail)
    assert told[-1] == "clear"


def test_caches_are_emptied_when_no_other_version_captures(told: list[str]) -> None:
    """PyTorch refuses to while any thread does."""
    recorder = TorchRecorder()
    leaving = threading.Thread(target=empty_caches)
    told.clear()

    def step() -> None:
        leaving.start()
        leaving.join(0.1)  # time for it to come too early
        told.append("step")

    recorder.record(step)
    leaving.join()
    assert told == ["clear", "begin", "step", "end", "clear", "clear", "empty caches"]
