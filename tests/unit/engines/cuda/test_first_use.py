"""What may load a kernel has a slice to itself, and only the first time."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
triton = pytest.importorskip("triton", reason="triton is not installed")

from blink_persistent.engines.cuda.first_use import loading_in_slices

LOADED = (None, None, "rotate", None, "hash")  # what Triton tells of a kernel


class Slices:
    """Counts the slices that were entered; they may not nest."""

    def __init__(self) -> None:
        self.count = 0
        self.inside = False
        self.finished: list[bool] = []  # inside a slice, or before one

    @contextmanager
    def __call__(self) -> Iterator[None]:
        assert not self.inside
        self.count, self.inside = self.count + 1, True
        try:
            yield
        finally:
            self.inside = False

    def finish(self) -> None:
        self.finished.append(self.inside)


@pytest.fixture
def slices() -> Slices:
    return Slices()


def matrix(rows: int, columns: int) -> Any:
    return torch.empty((rows, columns), device="meta")


def test_an_operation_has_a_slice_until_its_like_has_run(slices: Slices) -> None:
    with loading_in_slices(slices, device="meta", finish=slices.finish):
        torch.mm(matrix(3, 5), matrix(5, 70_001))
        assert slices.count == 1
        torch.mm(matrix(3, 5), matrix(5, 70_001))
        assert slices.count == 1
        torch.mm(matrix(4, 5), matrix(5, 70_001))
        assert slices.count == 2
        torch.mm(matrix(3, 5), matrix(70_001, 5).t())  # another layout, perhaps another kernel
        assert slices.count == 3
    with loading_in_slices(slices, device="meta", finish=slices.finish):
        torch.mm(matrix(3, 5), matrix(5, 70_001))
    assert slices.count == 3


def test_pytorchs_compiler_is_not_imported() -> None:
    script = """
import sys, torch
from blink_persistent.engines.cuda.first_use import loading_in_slices
from contextlib import nullcontext
with loading_in_slices(nullcontext, device="meta", finish=lambda: None):
    torch.zeros(3, device="meta")
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_what_is_made_on_the_gpu_counts_and_what_stays_on_the_host_does_not(slices: Slices) -> None:
    with loading_in_slices(slices, device="meta", finish=slices.finish):
        torch.ones(70_003) + torch.ones(70_003)
        assert slices.count == 0
        torch.zeros(70_003, device="meta")
        assert slices.count == 1
        torch.ones(70_003).to("meta")
        assert slices.count == 2


def test_weights_that_are_copied_as_they_are_need_no_kernel(slices: Slices) -> None:
    with loading_in_slices(slices, device="meta", finish=slices.finish):
        place = torch.empty(70_005, device="meta")
        place.copy_(torch.empty(70_005))
        assert slices.count == 0
        place.copy_(torch.empty(70_005, dtype=torch.bfloat16))  # converted on the GPU
        assert slices.count == 1


def test_another_thread_needs_handles_of_its_own_and_no_kernel_again(slices: Slices) -> None:
    counts = []

    def multiply() -> None:
        with loading_in_slices(slices, device="meta", finish=slices.finish):
            for rows in (7, 8, 7):
                torch.mm(matrix(rows, 5), matrix(5, 70_007))
                counts.append(slices.count)

    multiply()
    thread = threading.Thread(target=multiply)
    thread.start()
    thread.join()
    assert counts == [1, 2, 2, 3, 3, 3]


def test_an_operation_that_fails_leaves_its_slice(slices: Slices) -> None:
    with loading_in_slices(slices, device="meta", finish=slices.finish):
        with pytest.raises(RuntimeError):
            torch.mm(matrix(2, 3), matrix(4, 70_001))
        assert (slices.count, slices.inside) == (1, False)


def test_a_compiled_kernel_is_loaded_and_first_run_in_a_slice(slices: Slices) -> None:
    hooks = triton.knobs.runtime

    def launch(loads: bool, inside: bool) -> None:
        if loads:
            hooks.kernel_load_start_hook(*LOADED)
            hooks.kernel_load_end_hook(*LOADED)
        assert slices.inside == inside
        hooks.launch_exit_hook({})
        assert not slices.inside

    with loading_in_slices(slices, finish=slices.finish):
        launch(loads=True, inside=True)
        assert slices.finished == [False, True]  # what came before, then what it launched
        launch(loads=False, inside=False)
        other = threading.Thread(target=launch, args=(True, False))  # not its thread: no slice
        other.start()
        other.join()
    launch(loads=True, inside=False)
    assert slices.count == 1


def test_a_load_that_fails_leaves_its_slice(slices: Slices) -> None:
    def load() -> None:
        with loading_in_slices(slices, finish=slices.finish):
            triton.knobs.runtime.kernel_load_start_hook(*LOADED)
            raise RuntimeError("no image")

    with pytest.raises(RuntimeError, match="no image"):
        load()
    assert (slices.count, slices.inside) == (1, False)
