"""TensorRT's phases become one fraction; over a real module's class."""

from __future__ import annotations

import pytest

from blink_persistent.engines.tensorrt.build_progress import build_progress

trt = pytest.importorskip("tensorrt_rtx_bindings", reason="TensorRT for RTX is not installed")


def test_an_inner_phase_is_a_part_of_its_parents_step() -> None:
    told: list[float] = []
    monitor = build_progress(trt, told.append)
    monitor.phase_start("build", None, 4)
    assert monitor.step_complete("build", 0)
    monitor.phase_start("tactics", "build", 2)
    assert monitor.step_complete("tactics", 0)
    assert monitor.step_complete("tactics", 1)
    monitor.phase_finish("tactics")
    assert monitor.step_complete("build", 1)
    monitor.phase_finish("build")
    assert told == [0.25, 0.375, 0.5, 0.5]


def test_the_fraction_never_falls() -> None:
    told: list[float] = []
    monitor = build_progress(trt, told.append)
    for _ in range(2):
        monitor.phase_start("build", None, 2)
        monitor.step_complete("build", 0)
        monitor.step_complete("build", 1)
        monitor.phase_finish("build")
    assert told == [0.5, 1.0, 1.0, 1.0]


def test_what_a_listener_raises_stops_the_build() -> None:
    def stop(fraction: float) -> None:
        raise KeyboardInterrupt

    monitor = build_progress(trt, stop)
    monitor.phase_start("build", None, 2)
    assert not monitor.step_complete("build", 0)
    assert not monitor.step_complete("build", 1)
    assert isinstance(monitor.error, KeyboardInterrupt)
