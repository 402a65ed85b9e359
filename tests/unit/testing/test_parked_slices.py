"""Slices in which a scheduler stands still, also when it is one of what is given back in them."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from blink_persistent.gpu import driver
from blink_persistent.gpu.driver import CudaError, Gpu
from blink_persistent.testing.fake_driver import FakeDriver
from blink_persistent.testing.parked_slices import ParkedSlices


class Scheduler:
    """Runs until it is parked; nobody can ask it anything once its stream is gone."""

    def __init__(self) -> None:
        self.runs, self.gone = True, False
        self.told: list[str] = []

    def is_idle(self) -> bool:
        if self.gone:
            raise CudaError("the scheduler's kernel died: CUDA_ERROR_CONTEXT_IS_DESTROYED")
        return not self.runs

    def park(self) -> None:
        self.runs = False
        self.told.append("park")

    def launch(self) -> None:
        self.runs = True
        self.told.append("launch")

    def lose_stream(self) -> None:
        self.gone = True


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> tuple[Gpu, ParkedSlices]:
    """One that gives back a thing or two in a slice, and the slices."""
    monkeypatch.setattr(driver, "cuda_driver", FakeDriver)
    clock = itertools.count(step=driver._SLICE_SECONDS / 2)
    monkeypatch.setattr(driver, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    parked = ParkedSlices()
    return Gpu(exclusive=parked), parked


def allocate_beside(gpu: Gpu, scheduler: Scheduler) -> None:
    for _ in range(4):
        gpu.allocate(64)
    gpu.at_close(scheduler.lose_stream)


def test_a_scheduler_stands_still_in_slices_and_goes_on(gpu: tuple[Gpu, ParkedSlices]) -> None:
    made, parked = gpu
    scheduler: Any = Scheduler()
    with parked.beside(scheduler):
        made.new_stream()
    made.new_stream()
    assert scheduler.told == ["park", "launch"]
    assert [each.what for each in parked.slices] == ["new_stream"]


def test_a_gpu_is_given_back_whose_own_scheduler_stood_still(
    gpu: tuple[Gpu, ParkedSlices],
) -> None:
    """It is asked no more when its stream has been destroyed, also where something has failed."""
    made, parked = gpu
    scheduler: Any = Scheduler()
    allocate_beside(made, scheduler)

    def serve() -> None:
        with made, parked.beside(scheduler):
            raise ValueError("what has failed")

    with pytest.raises(ValueError, match="what has failed"):
        serve()
    assert scheduler.gone
    assert scheduler.told == []
