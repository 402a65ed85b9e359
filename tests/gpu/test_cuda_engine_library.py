"""cuBLAS on a GPU that it shares with a scheduler."""

from __future__ import annotations

import ctypes
import threading

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from blink_persistent.engines.cuda.library import cublas, leave_multiprocessors, load_products

pytestmark = pytest.mark.gpu


def target() -> int:
    """Multiprocessors for which this thread's cuBLAS chooses; 0: all."""
    library, handle = cublas()
    count = ctypes.c_int(-1)
    assert library.cublasGetSmCountTarget(handle, ctypes.byref(count)) == 0
    return count.value


def test_products_of_a_thread_leave_the_schedulers_multiprocessor() -> None:
    found: list[int] = []

    def work() -> None:
        leave_multiprocessors(1)
        load_products(torch.device("cuda", 0))
        with torch.cuda.stream(torch.cuda.Stream()):
            found.append(target())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [torch.cuda.get_device_properties().multi_processor_count - 1]
