"""What is timed once is known to the next build.

The timing cache is a fake: TensorRT for RTX times nothing, and the full one needs a GPU.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from blink_persistent.engines.tensorrt.plan_builder import timings_kept


class FakeTimings:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def serialize(self) -> bytes:
        return self.data


class FakeConfig:
    """Refuses another machine's timings, as TensorRT does, and measures one thing a build."""

    def __init__(self, machine: bytes) -> None:
        self._machine = machine
        self._timings: FakeTimings | None = None

    def create_timing_cache(self, data: bytes) -> FakeTimings | None:
        foreign = data and not data.startswith(self._machine)
        return None if foreign else FakeTimings(data or self._machine)

    def set_timing_cache(self, timings: FakeTimings, ignore_mismatch: bool) -> None:
        assert not ignore_mismatch
        self._timings = timings

    def measure(self) -> None:
        self._timings = self._timings or FakeTimings(self._machine)
        self._timings.data += b"+"

    def get_timing_cache(self) -> FakeTimings | None:
        return self._timings


def build(machine: bytes, path: Path) -> None:
    config = FakeConfig(machine)
    with timings_kept(config, path):
        config.measure()


def test_timings_are_kept_from_build_to_build(tmp_path: Path) -> None:
    path = tmp_path / "timings"
    build(b"A", path)
    assert path.read_bytes() == b"A+"
    build(b"A", path)
    assert path.read_bytes() == b"A++"


def test_timings_of_another_machine_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "timings"
    build(b"A", path)
    build(b"B", path)
    assert path.read_bytes() == b"B+"


def test_a_build_that_fails_keeps_what_it_timed(tmp_path: Path) -> None:
    path, config = tmp_path / "timings", FakeConfig(b"A")

    def fail() -> None:
        with timings_kept(config, path):
            config.measure()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert path.read_bytes() == b"A+"
