"""What cuBLAS is told of the GPU that it shares with a scheduler."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from blink_persistent.engines.cuda.library import leave_multiprocessors


class FakeLibrary:
    """Keeps what it is told, and answers with `status`."""

    def __init__(self) -> None:
        self.status = 0
        self.said: list[tuple[object, object]] = []

    def cublasSetSmCountTarget(self, handle: ctypes.c_void_p, count: ctypes.c_int) -> int:  # noqa: N802
        self.said.append((handle.value, count.value))
        return self.status


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> FakeLibrary:
    library = FakeLibrary()
    names: dict[str, FakeLibrary] = {"libcublas.so.13": library}
    processors = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: processors)
    monkeypatch.setattr(torch.cuda, "current_blas_handle", lambda: 77)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(ctypes, "CDLL", names.__getitem__)
    return library


def test_the_schedulers_multiprocessor_is_left_out(library: FakeLibrary) -> None:
    leave_multiprocessors(1)
    assert library.said == [(77, 131)]


def test_a_refusal_is_told(library: FakeLibrary) -> None:
    library.status = 7
    with pytest.raises(RuntimeError, match=r"cublasSetSmCountTarget\(131\): status 7"):
        leave_multiprocessors(1)
