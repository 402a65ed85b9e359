"""What fails while a step is captured. PyTorch's graphs are stand-ins: there is no GPU."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from blink_persistent.engines.cuda.recorder import TorchRecorder


class InvalidGraph:
    """A capture that nothing comes of, as after an error in it."""

    ended = 0

    def __init__(self, keep_graph: bool) -> None: ...

    def capture_begin(self, **_: Any) -> None: ...

    def capture_end(self) -> None:
        InvalidGraph.ended += 1
        raise RuntimeError("operation failed due to a previous error during capture")


def test_the_reason_of_a_failed_capture_is_what_failed_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, stand_in in (
        ("Stream", object),
        ("graph_pool_handle", lambda: (0, 1)),
        ("stream", nullcontext),
        ("CUDAGraph", InvalidGraph),
    ):
        monkeypatch.setattr(torch.cuda, name, stand_in)

    def step() -> None:
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        TorchRecorder().record(step)
    assert InvalidGraph.ended == 1
